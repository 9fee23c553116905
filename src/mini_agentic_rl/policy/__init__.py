"""The policy: one set of weights that samples and learns. It knows only token ids; torch lives here.

Follow a token that is sampled:

    policy.py              `Policy`: sampling and learning take turns on the one torch thread (torch_thread.py), whole
                           ones or, where sampling runs ahead, shared ones (shared_turns.py); or sampling has a copy
                           of the weights on a device of its own (sampling_copy.py)
    engine.py              requests come in, from any thread; one `step` is one forward pass
    scheduler.py           which tokens the pass computes: admission, chunked prefill, preemption
    fair_shares.py         who is admitted before whom, and who is preempted, by what each holds already
    step_plan.py           those tokens, segment by segment, and the sequences that they belong to
    kv_cache.py            the blocks that hold keys and values, and the prefix tree that finds them again
    step_batch.py          the pass as tensors
    decode_runner.py       the same over fixed buffers (static_step.py), recorded and repeated on a GPU (step_graph.py)
    model.py               `PolicyModel`: weights, adapters and their versions; hidden states and logits
    sampling_attention.py  who looks at which cached keys
    packed_linear.py       the layers' weights as a CPU samples with them
    fused_layers.py        what stands between the layers' products, in one pass each
    decoder_stack.py       all layers of a decode step in one call
    drafts.py              guesses of the next tokens, so that one pass may yield several
    sampler.py             logits to tokens and their log-probabilities

Follow a token that is trained:

    learner.py             `Learner`: packed trees and a loss in, gradients and an optimizer step out
    update_bound.py        an optimizer step that moves the policy by no more than a bound
    loss.py                `Loss`: what a loss is given of each term, and what it gives
    value_learner.py       the same with a critic
    scorer.py              numbers of terms under weights that do not learn: old ones, a reference, a teacher
    teacher_kl.py          the divergence from a teacher's distribution, with its gradient
    tree_pass.py           the tree in chunks: forward in depth-first order, backward when all that look at one are done
    learning_attention.py  who looks at whom inside a tree; on a GPU through flex_trees.py
    lora_linear.py         a layer and its adapter as one operation
    logprobs.py            hidden states to log-probabilities and entropies, a few positions at a time
    frozen_head.py         the same through a head that is not trained, with the gradient worked out at once

With several ranks, ranks/ spreads both over processes that launch.py tells apart and that find each other through
network_interface.py, rank_group.py adds up gradients, and shards.py keeps a part of the base on each.

Both stand on attention.py, the seam to transformers, and compute with the threads that thread_count.py leaves them and
the prepared products that product_caches.py lets a CPU keep. free_memory.py hands back what is free between sampling
and learning, and device_copies.py brings their numbers to a GPU. Attention, and what stands between products, runs in
the C++ of kernels/ where that can be compiled.
load.py, model_files.py and adapter_config.py turn a name into a `PolicyModel`, adapters.py adds and removes adapters of
one, parameter_count.py counts its parameters, state_files.py writes the optimizer's state, and errors.py names what can
go wrong on the way. memory_plan.py predicts what a run will hold in memory, rank_plan.py the same of each rank and
server of a spread one, and step_rates.py the seconds of its steps.

settings.py holds the settings of all of them. `import mini_agentic_rl.policy` is light: what needs torch is loaded when
it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
