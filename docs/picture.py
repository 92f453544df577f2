"""Run a command in a real pseudo-terminal and save what its screen shows as an SVG.

python docs/picture.py --rows 44 -o docs/terminal.svg -- python examples/plain_loop.py
"""

import argparse
import codecs
import os
import pty
import subprocess
import sys
import time

import pyte
from rich.console import Console
from rich.text import Text

COLUMNS = 100


def record(command: list[str], rows: int) -> pyte.Screen:
    """The screen of a terminal emulator after ``command`` has ended in it."""
    leader, follower = pty.openpty()
    env = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": str(rows), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=env, close_fds=True
    )
    os.close(follower)
    screen = pyte.Screen(COLUMNS, rows)
    stream = pyte.Stream(screen)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        stream.feed(decoder.decode(data).replace("\n", "\r\n"))
    process.wait()
    return screen


def draw(screen: pyte.Screen, title: str) -> str:
    """The screen as SVG, with its bold text and colours."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        for row in range(screen.cursor.y + 1):
            line = Text()
            for column in range(COLUMNS):
                cell = screen.buffer[row][column]
                style = "bold" if cell.bold else ""
                color = cell.fg if cell.fg not in ("default", "") else ""
                color = f"#{color}" if len(color) == 6 and color.isalnum() else color
                # SVG readers drop leading blanks; hard ones stay.
                shown = cell.data.replace(" ", "\u00a0")
                line.append(shown, style=f"{style} {color}".strip() or None)
            console.print(line, no_wrap=True, highlight=False)
        picture = console.export_svg(title=title)
        return picture.replace("<text ", '<text xml:space="preserve" ')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=44)
    parser.add_argument("--title", default="scaledl")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    command = [word for word in args.command if word != "--"]
    started_s = time.perf_counter()
    screen = record(command, args.rows)
    with open(args.output, "w", encoding="utf-8") as file:
        file.write(draw(screen, args.title))
    took_s = time.perf_counter() - started_s
    sys.stderr.write(f"{args.output}: {' '.join(command)} took {took_s:.0f} s\n")


if __name__ == "__main__":
    main()
