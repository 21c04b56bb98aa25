"""Two steps of supervised and two of GRPO training with TRL on a session's rounds: does it fit?

    python benchmarks/train_smoke.py SESSION --kernel KERNEL [--device cuda] [--out FILE]

Needs `trl` and `datasets`. The rounds are exported as `tune export` does and read by `datasets`.
The model is tiny and randomly initialised, its tokenizer made from the rows: nothing is fetched.
It learns nothing; what is shown is that TRL takes the files, masks all but the model's own words,
and calls the reward with kernels that are measured. Such a model writes no template, so each group
of completions holds one that the session recorded beside those the model generates: without it all
rewards would be equal, and no gradient would come of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from pathlib import Path

# Before anything asks the network for what is made here.
os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

STEPS = 2
GENERATIONS = 2
VOCABULARY = 2000
SPECIAL = ("<pad>", "<|start|>", "<|end|>")
# Roles, tools, calls and results, with the marks that tell which words are the model's own.
CHAT_TEMPLATE = """\
{%- if tools %}<|start|>tools
{{ tools | tojson }}<|end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}<|start|>assistant
{% generation %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
{%- endfor %}<|end|>{% endgeneration %}
{% else %}<|start|>{{ message.role }}{{ ' ' + message.name if message.name else '' }}
{{ message.content }}<|end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant
{% endif %}"""


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows = {form: exported(args.session, place, form) for form in ("sft", "grpo")}
        tokenizer = tokenizer_of(rows["sft"])
        result = {
            "versions": versions(),
            "rows": {form: len(made) for form, made in rows.items()},
            "sft": supervised(rows["sft"], tokenizer, place / "sft"),
            "grpo": reinforced(rows, tokenizer, place / "grpo", args),
        }
    text = json.dumps(result)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("session", type=Path)
    parser.add_argument("--kernel", type=Path, required=True, help=".cu, or its search space")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workload", action="append", default=[])
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("trl", "transformers", "datasets", "torch")}


def exported(session, folder, form):
    """Write the rounds and read them back as a data set."""
    from datasets import load_dataset

    from tuner.extensions.agents.training import write_trajectories

    path = folder / f"{form}.jsonl"
    write_trajectories(session, path, form)
    cache = str(folder / "cache")
    # In one piece: else tool calls that only a later piece has are an error.
    return load_dataset(
        "json", data_files=str(path), split="train", cache_dir=cache, chunksize=path.stat().st_size
    )


def tokenizer_of(rows):
    """Train a byte-level tokenizer on all that was said."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    said = [m["content"] for row in rows for m in row["prompt"] + row["completion"]]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(said, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=SPECIAL[0], eos_token=SPECIAL[2], padding_side="left"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_model(tokenizer):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=65_536,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def common(place) -> dict[str, object]:
    import torch

    return {
        "output_dir": str(place),
        "max_steps": STEPS,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": False,
        "use_cpu": not torch.cuda.is_available(),
        "seed": 0,
    }


def supervised(rows, tokenizer, place) -> dict[str, object]:
    """Train on the completions alone, and there on what the model itself said."""
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(
        **common(place), per_device_train_batch_size=1, max_length=None, assistant_only_loss=True
    )
    trainer = SFTTrainer(
        tiny_model(tokenizer), args=config, train_dataset=rows, processing_class=tokenizer
    )
    labels = [[one for one in row["labels"] if one != -100] for row in trainer.train_dataset]
    before = weights(trainer.model)
    trainer.train()
    return {
        "losses": logged(trainer, "loss"),
        "moved": before != weights(trainer.model),
        "learnt": [tokenizer.decode(one) for one in labels],
    }


def reinforced(rows, tokenizer, place, args) -> dict[str, object]:
    from trl import GRPOConfig, GRPOTrainer

    from tuner import Effort, GrpoReward

    effort = Effort(device=args.device, workloads=tuple(args.workload), trials=2, rounds=4)
    config = GRPOConfig(
        **common(place),
        per_device_train_batch_size=GENERATIONS,
        num_generations=GENERATIONS,
        max_completion_length=16,
        beta=0.0,
    )
    reward = GrpoReward(args.kernel, effort)
    given: list[list[float | None]] = []

    def watched(**columns):
        given.append(reward(**columns))
        return given[-1]

    watched.__name__ = reward.__name__
    try:
        trainer = GRPOTrainer(
            tiny_model(tokenizer),
            reward_funcs=watched,
            args=config,
            train_dataset=rows["grpo"],
            processing_class=tokenizer,
            rollout_func=Rollout(rows, tokenizer),
        )
        before = weights(trainer.model)
        trainer.train()
    finally:
        reward.close()
    return {
        "rewards": given,
        "logged": logged(trainer, f"rewards/{reward.__name__}/mean"),
        "losses": logged(trainer, "loss"),
        "moved": before != weights(trainer.model),
    }


class Rollout:
    """Generate completions, and put the template that was recorded in each group's first place."""

    def __init__(self, rows, tokenizer) -> None:
        recorded = {row["round"]: row["completion"][-1]["content"] for row in rows["sft"]}
        self.recorded = {json.dumps(row["prompt"]): recorded[row["round"]] for row in rows["grpo"]}
        self.tokenizer = tokenizer

    def __call__(self, prompts, trainer):
        prompt_ids, completion_ids = [], []
        for number, prompt in enumerate(prompts):
            ids = self.tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, return_dict=True
            )["input_ids"]
            prompt_ids.append(ids)
            if number % GENERATIONS == 0:
                text = self.recorded[json.dumps(prompt)] + self.tokenizer.eos_token
                completion_ids.append(self.tokenizer(text)["input_ids"])
            else:
                completion_ids.append(self.generated(ids, trainer))
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}

    def generated(self, ids, trainer):
        import torch

        start = torch.tensor([ids], device=trainer.accelerator.device)
        model = trainer.accelerator.unwrap_model(trainer.model)
        with torch.no_grad():
            made = model.generate(
                start,
                attention_mask=torch.ones_like(start),
                max_new_tokens=trainer.args.max_completion_length,
                do_sample=True,
            )
        return made[0, len(ids) :].tolist()


def weights(model) -> float:
    """Sum the weights up: a step that changes any changes this."""
    return sum(float(one.detach().double().abs().sum()) for one in model.parameters())


def logged(trainer, name) -> list[float]:
    found = [float(entry[name]) for entry in trainer.state.log_history if name in entry]
    assert all(map(math.isfinite, found))
    return found


if __name__ == "__main__":
    main()
