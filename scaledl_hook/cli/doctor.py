"""``scaledl doctor``: what works here and what does not, each with its remedy.

The only command that loads torch. It never asks CUDA anything, so that no context is created on a
GPU that somebody else uses; the GPUs are read through NVML.
"""

import typer

from scaledl.cli.checks import all_checks
from scaledl.cli.stream import FAILED, HomeOption, JsonOption, look_of_stdout, write_json, write_out
from scaledl.report.console import render_doctor

SHORT_HELP = "Tell what works on this machine."
HELP = (
    "Example: scaledl doctor\n\n"
    "Tell what works on this machine and what does not, each with its remedy. ok: works; warn: "
    "works, but see the remedy; off: this sensor is absent, times and forecasts still work; fail: "
    "scaledl cannot work. Needs no GPU and creates no CUDA context. Exit code 1 if anything fails."
)


def run(home: HomeOption = None, json: JsonOption = False) -> None:
    """Write the checks to standard output."""
    checks = all_checks(home)
    look = look_of_stdout()
    if json:
        write_json({"schema": "scaledl.doctor/1", "checks": checks})
    else:
        write_out(render_doctor(checks, width=look.width, unicode=look.unicode, color=look.color))
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(FAILED)
