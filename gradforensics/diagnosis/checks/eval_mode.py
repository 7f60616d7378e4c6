"""Checks on the mode of a model: dropout or batch statistics at work in an evaluation, or missing in training."""

from __future__ import annotations

import numpy as np
import polars as pl

from gradforensics import signals, trend_signals
from gradforensics.diagnosis.checks.loss import descending_loss
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check, hit_at
from gradforensics.tables import Evidence, SeriesKey


def _twice(evidence: Evidence) -> list[tuple[SeriesKey, pl.DataFrame]]:
    """Of every evaluation loss the steps at which one launch logged two or more values: step, low, high, line.

    Values of several ranks are of several parts of the data; rows of several launches may be of several models.
    """
    found: list[tuple[SeriesKey, pl.DataFrame]] = []
    for key, stored in evidence.frames.items():
        if key.phase != "eval" or "loss" not in key.series or stored.step_unit not in ("step", "micro_step"):
            continue
        rows = stored.frame.filter(pl.col("value").is_not_null() & pl.col("step").is_not_null())
        if rows["rank"].n_unique() > 1 or rows.height < 2:
            continue
        grouped = (
            rows.group_by("attempt", "step")
            .agg(
                pl.len().alias("count"),
                pl.col("value").min().alias("low"),
                pl.col("value").max().alias("high"),
                pl.col("line").max().alias("line"),
            )
            .filter(pl.col("count") > 1)
            .sort("step")
        )
        if grouped.height:
            found.append((key, grouped))
    return found


@check(needs=["series:eval/loss"], facts=["low", "high", "difference", "steps", "twice"])
def one_step_evaluated_differently(evidence: Evidence, *, difference: float, steps: int) -> Answer:
    """The same step was evaluated twice and the losses differ by more than `difference` of their size.

    steps: at so many steps of one series at least. The last step does not count where the best model is loaded at the
    end, since its second evaluation is then of other weights.
    """
    twice = _twice(evidence)
    if not twice:
        return Missing("one step evaluated twice (call evaluate() two times in a row)")
    loaded = evidence.setting("load_best_model_at_end") is True
    judged = False
    for key, rows in twice:
        last = evidence.steps[1] if evidence.steps else None
        kept = rows.filter(pl.col("step") != last) if loaded else rows
        if not kept.height:
            continue
        judged = True
        margin = np.maximum(difference * np.abs(kept["high"].to_numpy()), 1.5 * evidence.frames[key].resolution)
        differing = kept.filter(pl.Series(kept["high"].to_numpy() - kept["low"].to_numpy() > margin))
        if differing.height < steps or 2 * differing.height < kept.height:
            continue
        row = differing.row(0, named=True)
        facts: dict[str, Fact] = {
            "low": row["low"],
            "high": row["high"],
            "difference": (row["high"] - row["low"]) / max(abs(row["high"]), 1e-12),
            "steps": differing.height,
            "twice": kept.height,
        }
        name = f"eval/{key.series}"
        return [Hit(row["step"], None, name, key.tag, row["high"], key.source, row["line"], facts=facts)]
    return [] if judged else Missing("one step evaluated twice (call evaluate() two times in a row)")


@check(needs=["series:eval/loss:points>=8", "series:loss:points>=20"], facts=["noise", "level", "train"])
def eval_jumps_about(evidence: Evidence, *, noise: float, times: float) -> Answer:
    """The evaluation loss is above `times` the training loss and jumps about by `noise` of its level.

    Batch statistics that do not fit the weights do that. A single spike does not count (the noise is a median), and a
    rise, as overfitting shows it, is no noise.
    """
    loss, held_out = descending_loss(evidence), evidence.series("loss", "eval")
    if isinstance(loss, Missing) or held_out is None or len(held_out.good) < 8:
        return loss if isinstance(loss, Missing) else Missing("series:eval/loss:points>=8")
    values = held_out.good.values[len(held_out.good) // 4 :]
    level = float(np.median(values))
    train = float(np.median(loss.values[len(loss) // 4 :]))
    spread = signals.noise_sd(values)
    if train <= 0 or level < times * train or spread < noise * level:
        return []
    start = len(held_out.good) // 4
    return [hit_at(held_out.good, start, noise=spread / level, level=level, train=train)]


@check(
    needs=["series:eval/loss", "series:loss:points>=40", "settings:dropout"],
    facts=["before", "after", "fall", "errors", "dropout"],
)
def train_loss_steps_down_at_first_eval(
    evidence: Evidence, *, errors: float, fall: float, dropout: float, width: int
) -> Answer:
    """With dropout configured, the training loss steps down at the first evaluation and at no later one.

    model.eval() of the evaluation then stays on: dropout is off from there on. errors, fall: least height of the step,
    in standard errors and as a fraction; dropout: least rate that is large enough to show; width: points per side.
    """
    loss, held_out = descending_loss(evidence), evidence.series("loss", "eval")
    if isinstance(loss, Missing) or held_out is None:
        return loss if isinstance(loss, Missing) else Missing("series:eval/loss")
    rate = evidence.number("dropout")
    if rate is None or rate < dropout:
        return []
    places = [int(np.searchsorted(loss.steps, step, side="right")) for step in held_out.good.steps.tolist()]
    places = [p for p in dict.fromkeys(places) if 8 <= p <= len(loss) - 8]
    jumps = [trend_signals.jump_at(loss.steps, loss.values, p, width) for p in places[:20]]
    known = [j for j in jumps if j is not None]
    if len(known) < 2 or jumps[0] is None:
        return Missing("series:loss at every step around the first evaluation")
    first = jumps[0]
    if first.errors > -errors or -first.height < fall * abs(first.before):
        return []
    if any(j.errors < -0.5 * errors for j in known[1:]):
        return []
    facts: dict[str, Fact] = {
        "before": first.before,
        "after": first.before + first.height,
        "fall": -first.height / abs(first.before),
        "errors": -first.errors,
        "dropout": rate,
    }
    return [hit_at(loss, places[0], facts)]


CHECKS: tuple[Check, ...] = (
    one_step_evaluated_differently,
    eval_jumps_about,
    train_loss_steps_down_at_first_eval,
)
