"""Train a small GPT from scratch on Python's own documentation, by tilewright and by torch's own layers.

    python examples/train_gpt.py                   # on a GPU: both, beside each other
    python examples/train_gpt.py --toy --steps 3   # without a GPU: a toy, whose kernels the emulator runs

Both models start from the same weights and see the same text, so that their losses agree. The table at the end has the
time a step and, on a GPU, the most memory held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional

import tilewright as tw
import tilewright.torch as tt

Attention = Callable[..., Tensor]


class Block(nn.Module):
    """Attention and two products, each after a norm and beside a residual."""

    def __init__(self, width: int, heads: int, attention: Attention) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, width = x.shape
        q, k, v = (
            part.view(batch, rows, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = self.attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, rows, width))
        return x + self.feed(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, letters: int, context: int, layers: int, width: int, heads: int, attention: Attention) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, attention) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.letter(tokens) + self.place(places))))


def train(ours: bool, options: argparse.Namespace, device: str) -> dict[str, object]:
    """Losses, milliseconds a step (the median of those after the first), and bytes held at most (0 without a GPU)."""
    text = "".join(topics.values())
    letters = sorted(set(text))
    number = {letter: n for n, letter in enumerate(letters)}
    data = torch.tensor([number[letter] for letter in text])
    torch.manual_seed(0)
    attention = tt.scaled_dot_product_attention if ours else functional.scaled_dot_product_attention
    model = Gpt(len(letters), options.context, options.layers, options.width, options.heads, attention).to(device)
    if ours:
        tt.replace_linears(model, fuse=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    losses, times = [], []
    for step in range(options.steps):
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(data) - options.context - 1, (options.batch,), generator=generator)
        rows = torch.stack([data[start : start + options.context + 1] for start in starts]).to(device)
        begin = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # waits for the GPU
        times.append(1e3 * (time.perf_counter() - begin))
        if step % max(options.steps // 10, 1) == 0:
            print(f"{'tilewright' if ours else 'torch':>10}  step {step:4}  loss {losses[-1]:.4f}", flush=True)
    settled = sorted(times[1:] or times)
    return {
        "losses": losses, "ms": settled[len(settled) // 2],
        "bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("steps", 300), ("batch", 16), ("context", 512), ("layers", 6), ("width", 768), ("heads", 12),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=3e-4, help="of learning")
    parser.add_argument("--toy", action="store_true", help="a model that the emulator trains in seconds a step")
    parser.add_argument("--json", help="a file for the losses, times and memory")
    options = parser.parse_args()
    if options.toy:
        options.batch, options.context, options.layers, options.width, options.heads = 2, 16, 1, 32, 1
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.toy:
        parser.error("there is no GPU here: add --toy, and the emulator trains a toy")
    results = {}
    for ours in (False, True):
        emulated = tw.emulator() if ours and device == "cpu" else contextlib.nullcontext()
        with emulated:
            results["tilewright" if ours else "torch"] = train(ours, options, device)
    for name, result in results.items():
        held = f", {result['bytes'] / 2**20:.0f} MiB" if device == "cuda" else ""
        time_told = f"{result['ms']:.1f} ms a step{held}" if device == "cuda" else "no times: there is no GPU"
        print(f"{name:>10}  last loss {result['losses'][-1]:.4f}, {time_told}")
    apart = max(abs(a - b) for a, b in zip(*(result["losses"] for result in results.values()), strict=True))
    print(f"the losses are at most {apart:.4f} apart")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
