"""The vocabulary that rule files may use: every check, registered by hand."""

from __future__ import annotations

from gradforensics.diagnosis.checks import evaluation, finiteness, learning_rate, loss, scaling
from gradforensics.diagnosis.vocabulary import Check

CHECKS: dict[str, Check] = {
    c.name: c
    for c in (
        loss.left_best_level,
        loss.left_best_level_at_high_lr,
        loss.left_best_level_with_gradient,
        loss.left_far_above_its_start,
        loss.parks_at_unigram,
        loss.bounces,
        loss.rises_to_nonfinite,
        loss.starts_worse_than_chance,
        learning_rate.lr_identically_zero,
        learning_rate.stands_still_at_tiny_lr,
        learning_rate.lr_above_recipe,
        learning_rate.parks_at_unigram_above_recipe,
        learning_rate.schedule_begun_anew,
        learning_rate.schedule_warped,
        learning_rate.schedule_not_attached,
        learning_rate.schedule_departs,
        learning_rate.schedule_ended_early,
        learning_rate.schedule_restarted,
        finiteness.loss_nonfinite_first,
        finiteness.loss_nonfinite,
        finiteness.gradient_nonfinite_first,
        finiteness.gradient_nonfinite_beside_finite_loss,
        finiteness.nonfinite_isolated,
        finiteness.nonfinite_often,
        finiteness.loss_always_zero,
        finiteness.batch_without_labels,
        finiteness.eval_nonfinite_only,
        finiteness.gradient_nonfinite_from_start,
        finiteness.zero_loss_nan_gradient,
        finiteness.finite_loss_nan_gradient,
        finiteness.loss_exactly_zero,
        scaling.loss_scale_collapsed,
        scaling.backoffs_unprovoked,
        scaling.overflow_lines,
        scaling.pure_half_precision,
        evaluation.eval_rises,
        evaluation.old_task_forgotten,
    )
}
