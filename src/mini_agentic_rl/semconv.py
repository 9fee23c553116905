"""Names of spans and attributes in traces, as in agent-lightning 0.3, whose tools can read them."""

from __future__ import annotations

from enum import Enum
from typing import Final

from pydantic import BaseModel

# Span names
AGL_ANNOTATION: Final = "agentlightning.annotation"
AGL_MESSAGE: Final = "agentlightning.message"
AGL_OBJECT: Final = "agentlightning.object"
AGL_EXCEPTION: Final = "agentlightning.exception"
AGL_OPERATION: Final = "agentlightning.operation"
AGL_REWARD: Final = "agentlightning.reward"
"""Name of the operation that computes a reward. The reward itself is an annotation."""
AGL_VIRTUAL: Final = "agentlightning.virtual"

AGL_LEARNER: Final = "agentlightning.learner"
"""Name of the span with the learner's view of a rollout's tokens before the update."""

FAILURE_REASON: Final = "agentlightning.failure.reason"
"""Attribute of an exception span: why the attempt failed or was stopped."""
ROLLOUT_BUDGET_EXCEEDED: Final = "RolloutBudgetExceeded"
"""`exception.type` of the exception span of an attempt that exceeded its limit of LLM calls or tokens."""

SAMPLING_SEED: Final = "sampling_seed"
"""Key in a rollout's metadata: the seed from which the gateway derives the seeds of its calls."""

EXPERT_PREFIX: Final = "expert_prefix"
"""Key in a rollout's metadata: name of the recorded calls that answer the first calls of the rollout."""


class LightningResourceAttributes(Enum):
    """Attributes of the OpenTelemetry resource of a span."""

    ROLLOUT_ID = "agentlightning.rollout_id"
    ATTEMPT_ID = "agentlightning.attempt_id"
    SPAN_SEQUENCE_ID = "agentlightning.span_sequence_id"
    TRACER_NAME = "agentlightning.tracer.name"


class LightningSpanAttributes(Enum):
    """Prefixes and names of span attributes."""

    REWARD = "agentlightning.reward"
    REWARD_SCOPE = "agentlightning.reward_scope"
    """`rollout` on the reward of a whole rollout; absent on the reward of the last call before it."""
    LINK = "agentlightning.link"
    TAG = "agentlightning.tag"
    MESSAGE_BODY = "agentlightning.message.body"
    OBJECT_TYPE = "agentlightning.object.type"
    OBJECT_LITERAL = "agentlightning.object.literal"
    OBJECT_JSON = "agentlightning.object.json"
    OPERATION_NAME = "agentlightning.operation.name"
    OPERATION_INPUT = "agentlightning.operation.input"
    OPERATION_OUTPUT = "agentlightning.operation.output"
    TRAINABLE_AGENT = "agentlightning.trainable_agent"
    """Name of an agent whose calls are trained (attribute of an annotation)."""


class RewardAttributes(Enum):
    """Names below `agentlightning.reward.N`."""

    REWARD_NAME = "name"
    REWARD_VALUE = "value"


class RewardPydanticModel(BaseModel):
    """A named value of a reward."""

    name: str
    value: float


class LinkAttributes(Enum):
    """Names below `agentlightning.link.N`."""

    KEY_MATCH = "key_match"
    VALUE_MATCH = "value_match"


class LinkPydanticModel(BaseModel):
    """A condition on the spans that a link refers to."""

    key_match: str
    """Name of an attribute, or `span_id`, or `trace_id`."""
    value_match: str
    """Its value, as text."""


class LearnerSpanAttributes:
    """Attributes of the span of a learner: an item for each LLM call that it learned from, and a number for each of
    their trained tokens, in the order of the calls."""

    VERSION: Final = "agentlightning.learner.version"
    """Policy version of its weights."""
    SPAN_IDS: Final = "agentlightning.learner.span_ids"
    """Ids of the spans of the calls."""
    LENGTHS: Final = "agentlightning.learner.lengths"
    """Numbers of their trained tokens, which were sampled and not forced."""
    LOGPROBS: Final = "agentlightning.learner.logprobs"
    """Log-probabilities of the tokens."""
    ENTROPIES: Final = "agentlightning.learner.entropies"
    """Entropies (nats) of the distributions that they were sampled from."""


class GenAiAttributes:
    """Names of OpenTelemetry's semantic conventions for generative AI, for spans exported to other tools."""

    OPERATION: Final = "gen_ai.operation.name"
    PROVIDER: Final = "gen_ai.provider.name"
    CONVERSATION: Final = "gen_ai.conversation.id"
    AGENT_NAME: Final = "gen_ai.agent.name"
    REQUEST_MODEL: Final = "gen_ai.request.model"
    REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
    REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
    REQUEST_TOP_P: Final = "gen_ai.request.top_p"
    REQUEST_TOP_K: Final = "gen_ai.request.top_k"
    REQUEST_SEED: Final = "gen_ai.request.seed"
    REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
    REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
    RESPONSE_ID: Final = "gen_ai.response.id"
    RESPONSE_MODEL: Final = "gen_ai.response.model"
    FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
    INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
    INPUT_MESSAGES: Final = "gen_ai.input.messages"
    OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
    TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
    TOOL_NAME: Final = "gen_ai.tool.name"
    TOOL_TYPE: Final = "gen_ai.tool.type"
    TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
    TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
    TOOL_RESULT: Final = "gen_ai.tool.call.result"
    EVALUATION_NAME: Final = "gen_ai.evaluation.name"
    EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"

    EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
    """Name of the event of a value of a reward."""
    CHAT: Final = "chat"
    INVOKE_AGENT: Final = "invoke_agent"
    EXECUTE_TOOL: Final = "execute_tool"


class CompletionSpanAttributes(GenAiAttributes):
    """Attributes of the span of an LLM call: OpenTelemetry's GenAI names, then the tokens.

    The messages of the request, the message of this choice (as the agent received it) and the tools of the request are
    JSON text.
    """

    SPAN_NAME: Final = "openai.chat.completion"
    SYSTEM: Final = "gen_ai.system"
    REPETITION_PENALTY: Final = "agentlightning.request.repetition_penalty"
    """Repetition penalty of a call; the conventions have no name for it."""
    PROMPT_TOKEN_IDS: Final = "prompt_token_ids"
    RESPONSE_TOKEN_IDS: Final = "response_token_ids"
    RESPONSE_LOGPROBS: Final = "response_logprobs"
    RESPONSE_FORCED_POSITIONS: Final = "response_forced_positions"
    """Indices of the response tokens that a constraint forced; absent if there are none."""
    POLICY_VERSION: Final = "policy_version"
    POLICY_VERSIONS: Final = "policy_versions"
    """Version that sampled each response token; absent if `POLICY_VERSION` sampled all of them."""
    CHOICE_INDEX: Final = "choice_index"
    UNTRAINABLE: Final = "agentlightning.untrainable"
    """Reason why the call cannot be trained: what the model's server did not report."""
