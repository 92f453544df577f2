"""Hugging Face Trainer: track() goes around train(), nothing else changes.

The model is a tiny BERT with random weights, so that nothing is downloaded.

    python examples/hf_trainer.py --epochs 2 --steps 50
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import scaledl  # scaledl

VOCABULARY, LENGTH = 128, 32


class Sentences(Dataset):
    """Random token sequences; the label says whether the first token is in the upper half."""

    def __init__(self, num_samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(VOCABULARY, (num_samples, LENGTH), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": (tokens[0] >= VOCABULARY // 2).long()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50, help="optimizer steps in one epoch")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches in one step")
    args = parser.parse_args()

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=BertForSequenceClassification(config),
            args=TrainingArguments(
                output_dir=folder,
                num_train_epochs=args.epochs,
                per_device_train_batch_size=args.batch_size,
                gradient_accumulation_steps=args.accumulate,
                learning_rate=1e-3,
                eval_strategy="epoch",
                logging_strategy="epoch",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                dataloader_pin_memory=torch.cuda.is_available(),
            ),
            train_dataset=Sentences(args.steps * args.accumulate * args.batch_size, seed=0),
            eval_dataset=Sentences(64, seed=1),
        )
        with scaledl.track(trainer.model, epochs=args.epochs):  # scaledl
            trainer.train()


if __name__ == "__main__":
    main()
