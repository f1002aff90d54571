"""Build tiny random-weight models, offline and the same every time: `python build.py DIRECTORY [NAME...]`.

Needs torch, transformers and tokenizers, so it runs in the engine's environment.  A model that is there and was made
by the same recipe is left alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # run as a script and imported by path from tests
from recipes import RECIPES, SMALL, Recipe

FORMAT = 1
"""Raised when this file changes what it builds from an unchanged recipe."""
SPECIAL = ("<pad>", "<bos>", "<eos>", "<|user|>", "<|assistant|>", "<|system|>")
_TEXT = (
    "A conversation goes on turn by turn, and each turn begins with all the words of the turns before it. ",
    "The prefill engine reads the prompt once; the decode engine writes one token after another. ",
    "Keys and values of tokens that were seen before need not be computed again when they are kept. ",
    "for token in prompt:\n    cache[token] = compute(token)\n",
)
_CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer() -> Any:
    """A byte-level BPE tokenizer with a chat template; every byte sequence has tokens, so any text goes in."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pairs.train_from_iterator(_TEXT, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=pairs, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", model_max_length=32768
    )
    made.chat_template = _CHAT
    return made


def identity(recipe: Recipe) -> str:
    """Digest of all that decides a model's bytes, library versions aside."""
    text = json.dumps([FORMAT, dataclasses.asdict(recipe), _TEXT, _CHAT, SPECIAL], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def is_built(directory: Path, name: str) -> bool:
    """Whether `directory/name` holds the model that the recipe says."""
    stamp = directory / name / "recipe.sha256"
    return stamp.is_file() and stamp.read_text() == identity(RECIPES[name])


def build(directory: Path, name: str) -> bool:
    """Build one model unless it is there; True when it was built.  Others see all of it or nothing."""
    if is_built(directory, name):
        return False
    directory.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=directory))
    try:
        _write(RECIPES[name], scratch)
        (scratch / "recipe.sha256").write_text(identity(RECIPES[name]))
        scratch.chmod(0o755)
        shutil.rmtree(directory / name, ignore_errors=True)
        try:
            scratch.rename(directory / name)
        except OSError:
            if not is_built(directory, name):  # another process was first: then its work is as good
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return True


def _write(recipe: Recipe, directory: Path) -> None:
    import torch
    import transformers

    words = tokenizer()
    shared = {
        "vocab_size": len(words),
        "bos_token_id": words.bos_token_id,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "architectures": [recipe.architecture],
    }
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(recipe.seed)  # for what construction draws, such as convolution biases
    config = getattr(transformers, recipe.config)(**{**shared, **recipe.fields})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    draw = torch.Generator().manual_seed(recipe.seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.ndim >= 2:
                std = recipe.embedding_std if "embed_tokens" in name else recipe.matrix_std
                weight.normal_(0.0, std, generator=draw)
    model.save_pretrained(directory)
    words.save_pretrained(directory)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build tiny random-weight models.")
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(RECIPES)} (default: all but the bench's)"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in RECIPES]:
        parser.error(f"unknown model {unknown[0]!r}; known are {', '.join(RECIPES)}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name in given.names or SMALL:
        if build(given.directory, name):
            size = sum(file.stat().st_size for file in (given.directory / name).iterdir())
            print(f"built {name}: {size / 1e6:.1f} MB, {RECIPES[name].purpose}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
