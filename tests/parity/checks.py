"""The table of parity checks: each compares one piece with its reference, forward and backward.

A check is a generator of ``Comparison``, called by its name. ``test_parity.py`` runs each one and
requires every number to agree; ``test_mistakes.py`` runs them with one mistake planted and requires
some number to differ; the grader runs those of a piece. They compute with the book,
``minisbert.core``; only models that it does not open go through ``minisbert.models``.
"""

from collections.abc import Callable, Iterator

from tests.parity import (
    Comparison,
    by_hand,
    dropout,
    encoder,
    heads,
    losses,
    metrics,
    modern,
    search,
    sheets,
    text,
    training,
    vectors,
)

Check = Callable[[], Iterator[Comparison]]

ALL: tuple[Check, ...] = (
    # text, names
    text.split_words,
    text.word_pieces,
    text.name_tables,
    # the encoder
    encoder.gelu,
    encoder.layer_norm,
    encoder.attention,
    encoder.attention_probabilities,
    encoder.low_scores,
    encoder.embeddings,
    encoder.heads_apart_and_together,
    encoder.attention_module,
    encoder.feed_forward,
    encoder.layer,
    encoder.masks_and_ids,
    encoder.pooling,
    encoder.bert_forward,
    encoder.bert_gradients,
    encoder.distilbert,
    encoder.roberta,
    # its dropout
    dropout.attention_dropout,
    dropout.attention_module_dropout,
    dropout.layer_dropout,
    dropout.embeddings_dropout,
    # poolings and cosines
    vectors.pools,
    vectors.pools_of_low_numbers,
    vectors.pools_of_nan,
    vectors.cosine_matrix,
    vectors.cosine_matrix_of_no_cosine,
    vectors.encoded,
    # what came after BERT
    modern.rotation,
    modern.rms_norm,
    modern.swiglu,
    modern.newer_encoders,
    # losses
    losses.cosine_mse_loss,
    losses.mse_losses,
    losses.cross_entropy_losses,
    losses.mlm_loss,
    losses.mask_tokens,
    losses.contrastive_loss,
    losses.triplet_loss,
    losses.cosine_triplet_loss,
    losses.cosent_loss,
    losses.multiple_negatives_ranking_loss,
    losses.symmetric_ranking_loss,
    losses.ranking_among_duplicates_loss,
    losses.simcse_loss,
    losses.weighted_simcse_loss,
    losses.nt_xent_loss,
    losses.default_temperatures,
    losses.batch_in_parts,
    losses.distillation_loss,
    losses.matryoshka_loss,
    # heads
    heads.concat_heads,
    heads.joint_head,
    heads.cross_heads,
    heads.pair_models,
    heads.more_poolings,
    # training
    training.padded_batches,
    training.grouped_batches,
    training.layer_choice,
    training.kept_layers,
    training.linear_rates,
    training.adamw_steps,
    training.fit_steps,
    training.training_trace,
    training.patience,
    # metrics
    metrics.correlations,
    metrics.ranks,
    metrics.decisions,
    metrics.thresholds,
    metrics.geometry,
    metrics.retrieval,
    # search
    search.top_k,
    search.max_sim,
    search.int8_codes,
    search.bits_of_vectors,
    search.hamming_distances,
    search.rescored,
    search.bm25_scores,
    search.reciprocal_ranks,
    search.walks,
    # what the lessons write out by hand
    by_hand.byte_pair_merges,
    by_hand.dense_gelu_gradients,
    by_hand.measured_gradients,
    by_hand.divergences,
    by_hand.step_costs,
    by_hand.gain_in_pairs,
    # the sheets
    sheets.queries_for_two,
    sheets.boards,
    sheets.means_after_prompt,
    sheets.budgets,
)
CHECKS: dict[str, Check] = {check.__name__: check for check in ALL}
