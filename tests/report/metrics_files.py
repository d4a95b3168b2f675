"""Metrics files as verl's file logger writes them."""

import json

import yaml


def line(step, **data):
    return (json.dumps({"step": step, "data": data}) + "\n").encode()


def training(step, reward=0.5, entropy=0.2, length=30.0, **more):
    return line(
        step,
        **{
            "actor/entropy": entropy,
            "response_length/mean": length,
            "critic/score/mean": reward,
            "critic/rewards/mean": reward - 1,
            **more,
        },
    )


def validation(step, source="gtpo_arithmetic", mean=0.25, **best):
    """``validation(0, best@2=0.4)`` through ``**{...}``: best@k by k; mean@k is logged for the highest k."""
    k_max = max(int(name.split("@")[1]) for name in best)
    data = {
        f"val-{'core' if name.endswith(f'@{k_max}') else 'aux'}/{source}/acc/{name}/mean": value
        for name, value in best.items()
    }
    # verl logs these too; none is a measure.
    data |= {f"val-aux/{source}/acc/best@{k_max}/std": 9.0, f"val-aux/{source}/score/mean@{k_max}": 9.0}
    return line(step, **data, **{f"val-core/{source}/acc/mean@{k_max}": mean})


def write_run(folder, *lines, planned=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines))
    if planned is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump({"trainer": {"total_training_steps": planned}}))
    return folder
