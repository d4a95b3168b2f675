"""What the actor is trained on, token by token, in a file a step, for `gtpo-verl inspect`."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict

from gtpo_verl.algorithms import ESTIMATORS, ForkingConfig, shaped_rewards
from gtpo_verl.configuration.settings import RecipeSettings
from gtpo_verl.inspect import dump
from gtpo_verl.inspect.responses import ADVANTAGES, ENTROPY, LOG_PROB, ROLLOUT_LOG_PROB, SHAPED, Response, Step
from gtpo_verl.verl_plugin import transfer
from gtpo_verl.verl_plugin.advantages import EntropyAdvantages, group_ids, offsets_of_kept

logger = logging.getLogger(__name__)

# The most tokens that are looked at for one character: it has up to four bytes, and a token may hold the end of one and
# the beginning of another.
_MOST_TOKENS = 6
_INCOMPLETE = "\ufffd"


class TokenDump:
    """The dumps of a run.

    Args:
        config: the whole configuration; `algorithm`, `data.max_response_length` and `actor_rollout_ref.rollout` are
            read.
        settings: says how often, where and how much.
    """

    def __init__(self, config: DictConfig, settings: RecipeSettings):
        self.config = config
        self.settings = settings

    def forget_after(self, step: int) -> None:
        """Deletes dumps of steps after the one that a run goes on from, which will be taken again."""
        if self.settings.token_dump_dir is not None:
            dump.forget_after(Path(self.settings.token_dump_dir), step)

    def write(self, batch: transfer.Batch, step: int, tokenizer: Any) -> None:
        """Writes a step that is due. What cannot be written, as on a full disk, is said in the log and ends no run.

        Args:
            batch: with `advantages`, and what the log-probability pass left.
        """
        freq, folder = self.settings.token_dump_freq, self.settings.token_dump_dir
        if folder is None or freq <= 0 or step % freq:
            return
        limit = self.settings.token_dump_max_gib * 2**30
        try:
            path = dump.write(self._step(batch, step, tokenizer), Path(folder), limit)
        except OSError as error:
            logger.warning(f"The tokens of step {step} were not dumped: {error}")
            return
        if path.stat().st_size > limit:
            logger.warning(
                f"{path} alone is larger than gtpo_verl.token_dump_max_gib={self.settings.token_dump_max_gib}; "
                f"gtpo_verl.token_dump_groups={self.settings.token_dump_groups} says how much of a step is dumped"
            )

    def _step(self, batch: transfer.Batch, step: int, tokenizer: Any) -> Step:
        method = EntropyAdvantages(self.config)
        success = method.gtpo.success
        about = transfer.fetch(batch, ["uid", "extra_fields"])
        metrics = [_reward_metrics(fields) for fields in list(about["extra_fields"])]
        # A method that does not ask for the metric is trained without it; right is then what was rewarded.
        right = [success.key in one and float(one[success.key]) > success.threshold for one in metrics]
        rows = chosen_rows(list(about["uid"]), right, transfer.is_padding(batch), self.settings.token_dump_groups)
        some = transfer.of_rows(batch, rows)

        names = ["prompts", "responses", "response_mask", "rm_scores", ADVANTAGES]
        if not (self.config.algorithm.get("rollout_correction") or {}).get("bypass_mode"):
            names.append(ENTROPY)
        names.append(LOG_PROB)
        if self.config.actor_rollout_ref.rollout.calculate_log_probs:
            names.append(ROLLOUT_LOG_PROB)
        data = transfer.fetch(some, names)
        columns = {name: [row.numpy() for row in data[name].unbind()] for name in names}
        values = {
            name: [row.astype(np.float32) for row in columns[name]]
            for name in (ADVANTAGES, ENTROPY, LOG_PROB, ROLLOUT_LOG_PROB)
            if name in columns
        }
        scores = [float(row.sum()) for row in columns["rm_scores"]]
        is_right = [right[row] if success.key in metrics[row] else scores[n] > 0 for n, row in enumerate(rows)]
        uids = [about["uid"][row] for row in rows]
        penalty: list[float | None] = [None] * len(rows)
        if method.estimator in ESTIMATORS:
            values[SHAPED], penalty = self._shaped(method, data, uids, is_right)
        pieces, tokens = as_pieces(tokenizer, columns["responses"])
        responses = [
            Response(
                uid=str(uids[n]),
                prompt=tokenizer.decode(columns["prompts"][n], skip_special_tokens=True),
                right=is_right[n],
                score=scores[n],
                length_penalty=penalty[n],
                tokens=tokens[n],
                mask=columns["response_mask"][n] != 0,
                values={name: of_rows[n] for name, of_rows in values.items()},
                reward=metrics[row],
                ids=columns["responses"][n].astype(np.int32),
                prompt_ids=columns["prompts"][n].astype(np.int32),
            )
            for n, row in enumerate(rows)
        ]
        return Step(step, method.estimator, self._settings(method), pieces, responses)

    def _shaped(
        self, method: EntropyAdvantages, data: TensorDict, uids: Sequence[str], right: Sequence[bool]
    ) -> tuple[list[np.ndarray], list[float | None]]:
        """Shaped rewards, and the length penalty in them. They compare within a group, so some groups are enough."""
        mask = data["response_mask"]
        kept = mask.values() != 0
        shaped = shaped_rewards(
            method.estimator,
            entropy=data[ENTROPY].values()[kept],
            offsets=offsets_of_kept(kept, mask.offsets()),
            group=group_ids(list(uids)),
            success=torch.tensor(right),
            config=method.gtpo,
        )
        rewards = torch.zeros(kept.shape)
        rewards[kept] = shaped.rewards
        nested = torch.nested.nested_tensor_from_jagged(rewards, mask.offsets())
        penalised = ESTIMATORS[method.estimator].resolve(method.gtpo).length_penalty.enable
        penalty = shaped.length_penalty.tolist() if penalised else [None] * len(right)
        return [row.numpy() for row in nested.unbind()], penalty

    def _settings(self, method: EntropyAdvantages) -> dict[str, Any]:
        """The algorithm's settings as they hold: nulls filled in."""
        algorithm = self.config.algorithm
        if method.estimator in ESTIMATORS:
            settings = {"gtpo": asdict(ESTIMATORS[method.estimator].resolve(method.gtpo))}
        else:
            settings = {"norm_adv_by_std_in_grpo": algorithm.get("norm_adv_by_std_in_grpo", True)}
        forking = ForkingConfig.from_algorithm(algorithm)
        if forking.share < 1:
            settings["forking"] = asdict(forking)
        loss = OmegaConf.select(self.config, "actor_rollout_ref.actor.policy_loss.loss_mode")
        return {"adv_estimator": method.estimator, "loss_mode": loss, **settings}


def chosen_rows(uids: Sequence[str], right: Sequence[bool], padding: Sequence[bool], groups: int) -> list[int]:
    """Which rows are dumped: whole groups, those with right and wrong responses first, each in the batch's order."""
    members: dict[str, list[int]] = {}
    for row, (uid, padded) in enumerate(zip(uids, padding, strict=True)):
        if not padded:
            members.setdefault(uid, []).append(row)
    ordered = sorted(members.values(), key=lambda rows: len({right[row] for row in rows}) == 1)
    return [row for rows in ordered[:groups] for row in rows]


def as_pieces(tokenizer: Any, rows: Sequence[np.ndarray]) -> tuple[list[str], list[np.ndarray]]:
    """The text that each token adds to a response.

    Of a character that is spread over tokens, the last has all and the others have none: one by one they are no text.

    Args:
        rows: (n,) ids of each response.
    Returns:
        The vocabulary, and (n,) int32 of each response: which of its pieces each token is.
    """
    ids = np.unique(np.concatenate(rows)) if rows else np.zeros(0, np.int64)
    text_of = {token: _text(tokenizer, token) for token in ids.tolist()}
    number: dict[str, int] = {}
    of_token = np.array([number.setdefault(text, len(number)) for text in text_of.values()], np.int32)
    split = np.array([_INCOMPLETE in text for text in text_of.values()], bool)
    found = []
    for row in rows:
        places = np.searchsorted(ids, row)
        pieces = of_token[places]
        pending: list[int] = []
        for place in np.flatnonzero(split[places]):
            if pending and place != pending[-1] + 1:
                pending = []
            pending.append(int(place))
            for start in range(len(pending) - 2, -1, -1):  # what stands before may be no text at all
                text = tokenizer.decode(row[pending[start:]].tolist(), clean_up_tokenization_spaces=False)
                if _INCOMPLETE not in text:
                    pieces[pending[start:-1]] = number.setdefault("", len(number))
                    pieces[place] = number.setdefault(text, len(number))
                    pending = []
                    break
            pending = pending[-_MOST_TOKENS + 1 :]
        found.append(pieces)
    return list(number), found


def _text(tokenizer: Any, token: int) -> str:
    text = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    written = tokenizer.convert_ids_to_tokens(token)
    # A sentencepiece tokenizer leaves out the space that a text would begin with.
    return " " + text if written is not None and written.startswith("▁") and not text.startswith(" ") else text


def _reward_metrics(fields: Any) -> dict[str, Any]:
    fields = getattr(fields, "data", fields)
    return dict(fields.get("reward_extra_info", {})) if isinstance(fields, dict) else {}
