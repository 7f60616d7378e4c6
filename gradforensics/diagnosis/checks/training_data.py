"""Checks on the audit of the training data (table `data`), and on settings and series that speak of the same faults.

A hit on data stands at no step: it names the file, the line and the sample. What a series shows beside it has a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradforensics import data_signals, signals
from gradforensics.diagnosis import evidence_words
from gradforensics.diagnosis.checks.loss import descending_loss, of_trainer
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check, hit_at
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Series
from gradforensics.token_ids import ids_of

_LABELS = "data with token ids and labels"
_COLLATOR = lazy(r"DataCollatorFor(?:LanguageModeling|CompletionOnlyLM)\b")
_PLACES = ("file", "row")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table `data`."""

    file: str
    column: str
    quantity: str
    value: float
    unit: str
    count: int
    row: int | None
    line: int | None
    text: str


def rows(evidence: Evidence, quantity: str) -> list[Row]:
    """What the audit measured under this name, one row for each file and column."""
    table = evidence.table("data")
    if table is None:
        return []
    return [Row(*values) for values in table.iter_rows() if values[2] == quantity]


def _beside(evidence: Evidence, one: Row, quantity: str) -> Row | None:
    """Another quantity of the same file."""
    return next((r for r in rows(evidence, quantity) if r.file == one.file), None)


def _hit(one: Row, **facts: Fact) -> Hit:
    where: dict[str, Fact] = {"file": one.file, "row": one.row}
    return Hit(
        None, None, None, f"{one.column}: {one.quantity}", one.value, one.file, one.line, None, {**where, **facts}
    )


# -- index out of range ------------------------------------------------------------------------------------------------


@check(needs=["data"], facts=[*_PLACES, "count", "largest", "vocabulary"])
def data_outside_vocabulary(evidence: Evidence, *, what: str) -> Answer:
    """Ids or labels of the data lie outside of vocab_size, in a run that did not train for long. what: ids or labels.

    A run that went on cannot have met them: the setting or the file is not what it used.
    """
    found = rows(evidence, f"{what}_outside")
    if not found:
        return Missing("settings:vocab_size", f"data with token {what}")
    loss = evidence.series("loss")
    if evidence.ending.kind == "completed" or (loss is not None and len(loss) >= 100):
        return []
    hits = []
    for one in found:
        if one.count:
            largest = _beside(evidence, one, "max_id" if what == "ids" else "max_label")
            hits.append(_hit(one, count=one.count, largest=None if largest is None else int(largest.value),
                             vocabulary=_number(evidence, "vocab_size")))  # fmt: skip
    return hits


def _number(evidence: Evidence, key: str) -> int | None:
    value = evidence.number(key)
    return None if value is None else int(value)


# -- labels ------------------------------------------------------------------------------------------------------------


def _relabelled(evidence: Evidence) -> bool:
    """Whether a collator that makes its own labels stands in the settings."""
    return _collator(evidence) is not None


def _collator(evidence: Evidence) -> str | None:
    for setting in evidence.settings or []:
        found = _COLLATOR.search(f"{setting.name} {setting.value}")
        if found:
            return found[0]
    return None


@check(needs=["data"], facts=[*_PLACES, "share", "count"])
def pads_in_label_data(evidence: Evidence, *, share: float) -> Answer:
    """`share` or more of the labels that count in the data stand on padding (detector D41)."""
    found = rows(evidence, "pads_trained")
    if not found:
        return Missing(_LABELS)
    if _relabelled(evidence):
        return []
    return [_hit(one, share=one.value, count=one.count) for one in found if one.value >= share]


@check(needs=["data"], facts=[*_PLACES, "with_eos", "kept"])
def end_of_sequence_hidden_in_label_data(evidence: Evidence, *, ids: float, labels: float) -> Answer:
    """EOS follows the trained text in `ids` of the samples or more, and has a label in less than `labels` (D41)."""
    found = rows(evidence, "eos_behind")
    if not found:
        return Missing(_LABELS, "settings:eos_token_id")
    hits = []
    for one in found:
        kept = _beside(evidence, one, "eos_trained")
        if one.value >= ids and kept is not None and kept.value < labels:
            hits.append(_hit(one, with_eos=one.value, kept=kept.value))
    return hits


@check(needs=["data"], facts=[*_PLACES, "held", "samples"])
def no_end_of_sequence_in_data(evidence: Evidence, *, held: float, common: float, samples: int) -> Answer:
    """Samples with a masked prompt hold EOS in less than `held` of the cases and share no other last token.

    Not judged for packed data (most samples are full) and where `common` of the samples end alike: another end token.
    """
    found = rows(evidence, "eos_held")
    if not found:
        return Missing("data with token ids", "settings:eos_token_id")
    hits = []
    for one in found:
        full, end, whole = (_beside(evidence, one, q) for q in ("full", "common_end", "whole_text"))
        if whole is None or whole.value > 0.5 or full is None or full.value > 0.5:
            continue
        if one.value < held and end is not None and end.count >= samples and end.value < common:
            hits.append(_hit(one, held=one.value, samples=end.count))
    return hits


@check(needs=["data"], facts=[*_PLACES, "share", "count"])
def samples_without_labels_in_data(evidence: Evidence, *, least: float, most: float) -> Answer:
    """From `least` up to below `most` of the samples have no label that counts: all of them are ignored."""
    found = rows(evidence, "unlabelled")
    if not found:
        return Missing(_LABELS)
    return [_hit(one, share=one.value, count=one.count) for one in found if least <= one.value < most]


@check(needs=["data"], facts=[*_PLACES, "share", "count"])
def empty_answers_in_data(evidence: Evidence, *, share: float) -> Answer:
    """`share` or more of the samples have an empty answer (completion, output, response): nothing is left to train."""
    found = rows(evidence, "empty_answer")
    if not found:
        return Missing("data with answers")
    return [_hit(one, share=one.value, count=one.count) for one in found if one.value >= share]


@check(needs=["data"], facts=[*_PLACES, "setting", "share"])
def prompt_in_label_data(evidence: Evidence, *, share: float) -> Answer:
    """The settings want the loss on completions only, and the labels of `share` of the samples are the whole text."""
    found = rows(evidence, "whole_text")
    if not found:
        return Missing(_LABELS)
    wanted = next((key for key, value in _ONLY_COMPLETIONS if _as_truth(evidence.setting(key)) is value), None)
    if wanted is None:
        return Missing("settings:completion_only_loss")
    return [_hit(one, setting=wanted, share=one.value) for one in found if one.value >= share]


_ONLY_COMPLETIONS = (
    ("completion_only_loss", True),
    ("assistant_only_loss", True),
    ("train_on_inputs", False),
    ("train_on_prompt", False),
)


def _as_truth(value: object) -> bool | None:
    return {"true": True, "false": False}.get(str(value).lower()) if value is not None else None


@check(needs=["settings:pad_token_id", "settings:eos_token_id"], facts=["collator", "token"])
def collator_hides_end_of_sequence(evidence: Evidence) -> Answer:
    """pad_token_id is eos_token_id, and a collator that ignores every pad id makes the labels: EOS is never trained."""
    both = ids_of(evidence.setting("pad_token_id")) & ids_of(evidence.setting("eos_token_id"))
    if not both:
        return []
    collator = _collator(evidence)
    if collator is None:
        return Missing("settings:data_collator")
    if _as_truth(evidence.setting("packing")):
        return []
    return [Hit(None, value=float(min(both)), facts={"collator": collator, "token": min(both)})]


@check(needs=["series:loss:points>=40", "series:pad_share:points>=40"], facts=["correlation", "ratio"])
def loss_follows_padding(evidence: Evidence, *, correlation: float, tolerance: float) -> Answer:
    """The loss falls as the share of padding rises, as if every pad were a label that costs nothing.

    correlation: of their changes, at most; tolerance: how near slope over level must come to -1.
    """
    loss, share = descending_loss(evidence), evidence.series("pad_share")
    if isinstance(loss, Missing) or share is None:
        return loss if isinstance(loss, Missing) else Missing("series:pad_share")
    at, there = signals.common_places(loss.steps, share.good.steps)
    if len(at) < 40:
        return Missing("series:pad_share at the steps of the loss")
    values = share.good.values[there]
    tie = data_signals.padding_tie(loss.values[at], values / 100 if float(values.max()) > 1 else values)
    if tie is None:
        return Missing("series:pad_share that varies")
    if tie.correlation > correlation or abs(tie.ratio + 1) > tolerance:
        return []
    return [hit_at(loss, int(at[0]), correlation=tie.correlation, ratio=tie.ratio)]


@check(needs=["series:loss:points>=3", "series:grad_norm:points>=3"], facts=["points", "loss_there"])
def no_gradient_from_no_loss(evidence: Evidence, *, points: int) -> Answer:
    """From its first point on the loss is NaN (or 0, where the Trainer filters NaN) and the gradient norm exactly 0.

    That is the mean over no label: 0/0 in the forward pass, zeros in the backward pass.
    """
    loss, norm = evidence.series("loss"), evidence.series("grad_norm")
    if loss is None or norm is None:
        return Missing("series:loss", "series:grad_norm")
    if loss.finite.any() and isinstance(usable := descending_loss(evidence), Missing):
        return usable
    at, there = signals.common_places(loss.steps, norm.steps)
    if len(at) < points:
        return Missing("series:grad_norm at the steps of the loss")
    values = loss.values[at]
    nothing = (loss.bad[at] | (values == 0)) if of_trainer(evidence) else loss.bad[at]
    if not nothing.all() or not (norm.values[there] == 0).all():
        return []
    return [hit_at(loss, int(at[0]), points=len(at), loss_there=float(values[0]))]


# -- padding -----------------------------------------------------------------------------------------------------------


def _counts_positions(evidence: Evidence, models: str) -> bool | None:
    """Whether the model is one of `models`, which count positions from the first column; None where it is unknown."""
    kind = evidence.setting("model_type")
    return None if kind is None else str(kind).lower() in models.split()


@check(needs=["data"], facts=[*_PLACES, "share", "model"])
def left_padded_without_positions(evidence: Evidence, *, share: float, models: str) -> Answer:
    """`share` or more of the samples are padded on the left, without position_ids, for a model that counts columns."""
    found = rows(evidence, "left_padded")
    if not found:
        return Missing("data with token ids and attention masks")
    padded = [one for one in found if one.value >= share and one.text == "without position_ids"]
    if not padded:
        return []
    counts = _counts_positions(evidence, models)
    if counts is None:
        return Missing("settings:model_type")
    model = str(evidence.setting("model_type"))
    return [_hit(one, share=one.value, model=model) for one in padded] if counts else []


@check(needs=["settings:padding_side", "settings:model_type"], facts=["model"])
def left_padding_set(evidence: Evidence, *, models: str) -> Answer:
    """padding_side is left for a model that counts positions from the first column."""
    if str(evidence.setting("padding_side")).lower() != "left" or not _counts_positions(evidence, models):
        return []
    return [Hit(None, facts={"model": str(evidence.setting("model_type"))})]


@check(needs=["data"], facts=[*_PLACES, "share", "count"])
def masks_without_a_token(evidence: Evidence, *, share: float) -> Answer:
    """The attention masks of `share` or more of the samples have no 1: nothing to attend to."""
    found = rows(evidence, "unmasked")
    if not found:
        return Missing("data with token ids and attention masks")
    return [_hit(one, share=one.value, count=one.count) for one in found if one.count and one.value >= share]


# -- bad batches -------------------------------------------------------------------------------------------------------

_SPIKES = ("loss", "grad_norm")


def _spikes(evidence: Evidence, window: int, score: float, within: int) -> tuple[Series, np.ndarray] | None:
    """The series of loss and gradient norm with isolated spikes, and their places; the loss first."""
    for name in _SPIKES:
        series = evidence.series(name)
        if series is None or len(series.good) < 2 * window:
            continue
        values = series.good.values
        found = evidence.once(
            ("spikes", name, window, score, within),
            lambda values=values: data_signals.spikes(values, window, score, within),  # type: ignore[misc]  # bound now
        )
        if len(found):
            return series.good, found
    return None


def _spiked(evidence: Evidence, window: int) -> Missing | None:
    usable = descending_loss(evidence)
    if isinstance(usable, Missing):
        return usable
    return None if len(usable) >= 2 * window else Missing(f"series:loss:points>={2 * window}")


def _batch(evidence: Evidence) -> float | None:
    """Samples of one optimizer step."""
    whole = evidence.number("global_batch_size")
    each = evidence.number("per_device_train_batch_size")
    if whole is not None or each is None:
        return whole
    return each * (evidence.number("gradient_accumulation_steps") or 1) * (evidence.number("world_size") or 1)


@check(needs=["data", "series:loss"], facts=[*_PLACES, "times", "text", "spikes"])
def spike_at_repeated_text(
    evidence: Evidence, *, window: int, score: float, within: int, repeats: float, chance: float
) -> Answer:
    """A spike stands at the step whose batch, in the order of the file, holds the sample that repeats itself most.

    chance: the largest share of the steps at which the spikes of the run would meet it by accident.
    """
    lacking = _spiked(evidence, window)
    if lacking is not None:
        return lacking
    worst = [one for one in rows(evidence, "repeats") if one.value >= repeats and one.row]
    found = _spikes(evidence, window, score, within)
    if not worst or found is None:
        return []
    size = _batch(evidence)
    if size is None or size <= 0:
        return Missing("settings:per_device_train_batch_size")
    series, places = found
    if series.step_unit != "step" or len(places) * 3 * max(series.cadence, 1.0) > chance * (series.steps[-1] or 1):
        return []
    for one in worst:
        step = (int(one.row or 1) - 1) // int(size) + 1
        near = [p for p in places.tolist() if -1 <= series.steps[p] - step <= max(series.cadence, 1.0)]
        if near:
            return [
                hit_at(series, near[0], {"file": one.file, "row": one.row}, times=int(one.value), text=one.text,
                       spikes=len(places))
            ]  # fmt: skip
    return []


@check(needs=["data", "series:loss"], facts=[*_PLACES, "times", "text", "spikes", "samples"])
def spikes_beside_repeated_text(
    evidence: Evidence, *, window: int, score: float, within: int, repeats: float
) -> Answer:
    """The log has isolated spikes, and samples of the data repeat themselves; which step read them is not known."""
    lacking = _spiked(evidence, window)
    if lacking is not None:
        return lacking
    found = _spikes(evidence, window, score, within)
    if found is None:
        return []
    series, places = found
    worst = max(rows(evidence, "repeats"), key=lambda one: one.value, default=None)
    if worst is None:
        return Missing("data with texts or token ids")
    if worst.value < repeats:
        return []
    return [
        hit_at(series, int(places[0]), {"file": worst.file, "row": worst.row}, times=int(worst.value), text=worst.text,
               spikes=len(places), samples=worst.count)
    ]  # fmt: skip


@check(needs=["series:loss"], facts=["spikes", "epochs", "place"])
def spikes_at_one_place_of_epochs(
    evidence: Evidence, *, window: int, score: float, within: int, tolerance: float
) -> Answer:
    """Spikes of two epochs or more stand at the same place of their epochs, and no spike stands elsewhere.

    tolerance: how far apart the places may be, as a fraction of an epoch.
    """
    lacking = _spiked(evidence, window)
    if lacking is not None:
        return lacking
    found = _spikes(evidence, window, score, within)
    if found is None:
        return []
    series, places = found
    epochs = series.epochs[places]
    if not np.isfinite(epochs).all() or len(places) < 2:
        return []
    inside = epochs % 1.0
    middle = float(np.median(inside))
    apart = np.abs((inside - middle + 0.5) % 1.0 - 0.5)
    different = len(set(np.floor(epochs).tolist()))
    if different < 2 or different < len(places) or float(apart.max()) > tolerance:
        return []
    return [hit_at(series, int(places[0]), spikes=len(places), epochs=different, place=middle)]


@check(needs=["data"], facts=[*_PLACES, "times", "text", "share", "count"])
def repeated_text_in_data(evidence: Evidence, *, repeats: float, share: float) -> Answer:
    """An n-gram of 1 to 13 words or tokens stands `repeats` times in a row in `share` of the samples or more (D42)."""
    found = rows(evidence, "repeats")
    if not found:
        return Missing("data with texts or token ids")
    hits = []
    for one in found:
        whole = _beside(evidence, one, "samples")
        part = one.count / max(whole.count if whole else one.count, 1)
        if one.value >= repeats and part >= share:
            hits.append(_hit(one, times=int(one.value), text=one.text, share=part, count=one.count))
    return hits


@check(needs=["data"], facts=[*_PLACES, "share", "text", "count"])
def broken_text_in_data(evidence: Evidence, *, share: float) -> Answer:
    """Control and replacement characters are `share` or more of the characters of a file.

    Zero-width and other format characters do not count: they are ordinary tokens.
    """
    found = [*rows(evidence, "replacement"), *rows(evidence, "control")]
    if not found:
        return Missing("data with texts")
    return [_hit(one, share=one.value, text=one.text, count=one.count) for one in found if one.value >= share]


# -- repeated data -----------------------------------------------------------------------------------------------------


@check(needs=["data"], facts=[*_PLACES, "share", "count", "trained"])
def evaluation_in_training_data(evidence: Evidence, *, least: float, most: float, count: int) -> Answer:
    """From `least` up to below `most` of the samples of the evaluation, `count` at least, are training samples, too."""
    found = rows(evidence, "overlap")
    if not found:
        return Missing("data of training and of evaluation")
    return [
        _hit(one, share=one.value, count=one.count, trained=one.text)
        for one in found
        if least <= one.value < most and one.count >= count
    ]


@check(needs=["data"], facts=[*_PLACES, "share", "count", "text"])
def copies_in_data(evidence: Evidence, *, share: float, count: int) -> Answer:
    """`share` or more of the samples, `count` at least, are exact copies of earlier ones of the same file."""
    found = rows(evidence, "duplicates")
    if not found:
        return Missing("data with texts or token ids")
    return [
        _hit(one, share=one.value, count=one.count, text=evidence_words.copies(one.text))
        for one in found
        if one.value >= share and one.count >= count
    ]


@check(needs=["series:loss:points>=24"], facts=["epoch", "drop", "steps", "score"])
def loss_steps_down_at_epochs(evidence: Evidence, *, score: float, drop: float, least: int) -> Answer:
    """The loss steps down where epochs begin: by `drop` of its level in the mean, and at three beginnings of four.

    score: of all steps together (their sum over the root of their number, in robust standard deviations of the loss's
    usual changes); least: points per epoch.
    """
    loss = descending_loss(evidence)
    if isinstance(loss, Missing):
        return loss
    if not np.isfinite(loss.epochs).all():
        return Missing("series:loss with its epochs")
    if len(np.unique(loss.attempts)) > 1 or (np.diff(loss.epochs) < 0).any():
        return Missing("series:loss of one attempt")
    steps = data_signals.epoch_steps(loss.values, loss.epochs, least)
    if steps is None or len(steps) < 2:
        return Missing("series:loss with three epochs of eight points")
    scores = np.array([one.score for one in steps])
    together, mean = float(scores.sum() / np.sqrt(len(steps))), float(np.mean([one.drop for one in steps]))
    if together < score or mean < drop or float((scores >= 1).mean()) < 0.75:
        return []
    first = steps[0]
    epoch = float(loss.epochs[first.index])
    return [hit_at(loss, first.index, epoch=epoch, drop=mean, steps=len(steps), score=together)]


CHECKS: tuple[Check, ...] = (
    data_outside_vocabulary,
    pads_in_label_data,
    end_of_sequence_hidden_in_label_data,
    no_end_of_sequence_in_data,
    samples_without_labels_in_data,
    empty_answers_in_data,
    prompt_in_label_data,
    collator_hides_end_of_sequence,
    loss_follows_padding,
    no_gradient_from_no_loss,
    left_padded_without_positions,
    left_padding_set,
    masks_without_a_token,
    spike_at_repeated_text,
    spikes_beside_repeated_text,
    spikes_at_one_place_of_epochs,
    repeated_text_in_data,
    broken_text_in_data,
    evaluation_in_training_data,
    copies_in_data,
    loss_steps_down_at_epochs,
)
