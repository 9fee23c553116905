"""Chat templates that behave like those of the main model families, each with its quirks, written short.

What they keep of the originals: the tags, the place of system text and tools, the roles that are taken or refused, what
is dropped from the history, what the generation prompt holds, and how calls and results are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_agentic_rl.gateway.tool_formats import DEEPSEEK, KIMI

from ..small_tokenizer import GEMMA, small_tokenizer

LLAMA2 = (
    "{% set ns = namespace(system='') %}{% set turns = messages %}"
    "{% if messages[0].role == 'system' %}"
    "{% set ns.system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
    "{% set turns = messages[1:] %}{% endif %}"
    "{% for message in turns %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message.role == 'user' %}"
    "{{ bos_token + '[INST] ' + (ns.system if loop.first else '') + message.content.strip() + ' [/INST]' }}"
    "{% elif message.role == 'assistant' %}{{ ' ' + message.content.strip() + ' </s>' }}{% endif %}{% endfor %}"
)

LLAMA31 = (
    "{{ bos_token }}{% set ns = namespace(system='', turns=messages) %}"
    "{% if messages[0].role == 'system' %}"
    "{% set ns.system = messages[0].content | trim %}{% set ns.turns = messages[1:] %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}{% if tools %}{{ 'Environment: ipython\n' }}{% endif %}"
    "{{ 'Cutting Knowledge Date: December 2023\n\n' + ns.system + '<|eot_id|>' }}"
    "{% for message in ns.turns %}"
    "{% if message.role in ('tool', 'ipython') %}"
    "{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' + (message.content | tojson) + '<|eot_id|>' }}"
    "{% elif message.tool_calls %}"
    "{% if message.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls at once') }}{% endif %}"
    "{% set call = message.tool_calls[0].function %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{{ '{\"name\": \"' + call.name + '\", \"parameters\": ' + (call.arguments | tojson) + '}<|eot_id|>' }}"
    "{% else %}{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    '{% if tools and loop.first %}{{ \'Respond with {"name": ..., "parameters": ...}.\n\n\' }}'
    "{% for tool in tools %}{{ (tool | tojson(indent=4)) + '\n\n' }}{% endfor %}{% endif %}"
    "{{ message.content | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

_QWEN_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% else %}{{ DEFAULT }}{% endif %}"
    "{{ '# Tools\n\n<tools>' }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}"
    "{{ '\n</tools>\n\nFor each call: <tool_call></tool_call> with a JSON object<|im_end|>\n' }}"
    "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>system\n' + DEFAULT + '<|im_end|>\n' }}{% endif %}"
)
_QWEN_CALLS = (
    "{% for call in message.tool_calls %}{% if loop.index0 or said %}{{ '\n' }}{% endif %}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ (call.function.arguments | tojson) + '}\n</tool_call>' }}{% endfor %}"
)
_QWEN_RESULT = (
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
)

QWEN25 = (
    _QWEN_TOOLS.replace("DEFAULT", "'You are Qwen.'") + "{% for message in messages %}"
    "{% if message.role == 'user' or message.role == 'system' and not loop.first %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% elif message.role == 'assistant' %}{% set said = message.content %}{{ '<|im_start|>assistant\n' + said }}"
    + _QWEN_CALLS
    + "{{ '<|im_end|>\n' }}{% elif message.role == 'tool' %}"
    + _QWEN_RESULT
    + "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

QWEN3 = (
    _QWEN_TOOLS.replace("DEFAULT", "''") + "{% set ns = namespace(query=-1) %}{% for message in messages %}"
    "{% if message.role == 'user' %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}"
    "{% if message.role == 'user' or message.role == 'system' and not loop.first %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% elif message.role == 'assistant' %}{% set said = message.content %}{% set thought = '' %}"
    "{% if message.reasoning_content is string %}{% set thought = message.reasoning_content %}"
    "{% elif '</think>' in said %}{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ '<|im_start|>assistant\n' }}"
    "{% if loop.index0 > ns.query and (loop.last or thought) %}"
    "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + said.lstrip('\n') }}{% else %}{{ said }}{% endif %}"
    + _QWEN_CALLS
    + "{{ '<|im_end|>\n' }}{% elif message.role == 'tool' %}"
    + _QWEN_RESULT
    + "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SMOLLM3 = (
    "{{ '<|im_start|>system\n## Metadata\n\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "{% if tools %}{{ '### Tools\n\n<tools>' }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}"
    "{{ '\n</tools>\n' }}{% endif %}{{ '<|im_end|>\n' }}"
    "{% for message in messages %}"
    "{% if message.role == 'user' %}{{ '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}"
    "{% elif message.role == 'assistant' %}{% set said = message.content %}"
    "{{ '<|im_start|>assistant\n' + said.lstrip('\n') }}"
    + _QWEN_CALLS
    + "{{ '<|im_end|>\n' }}{% elif message.role == 'tool' %}"
    "{{ '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    "{# thoughts stay in the content: <think> ... </think> #}"
)

_MISTRAL_CHECK = (
    "{% set ns = namespace(index=0, user=-1) %}{% for message in turns %}"
    "{% if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}"
    "{% if (message.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.index = ns.index + 1 %}{% endif %}"
    "{% if message.role == 'user' %}{% set ns.user = loop.index0 %}{% endif %}{% endfor %}"
)
_MISTRAL_ID = "{% if ID | length != 9 %}{{ raise_exception('call ids have 9 letters and digits') }}{% endif %}"

MISTRAL3 = (
    "{{ bos_token }}{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% set turns = messages[1:] if messages[0].role == 'system' else messages %}" + _MISTRAL_CHECK + ""
    "{% for message in turns %}{% if message.role == 'user' %}"
    "{% if tools and loop.index0 == ns.user %}"
    "{{ '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{{ '[INST] ' + (system + '\n\n' if system and loop.index0 == ns.user else '') + message.content + '[/INST]' }}"
    "{% elif message.tool_calls %}{{ '[TOOL_CALLS] [' }}{% for call in message.tool_calls %}"
    + _MISTRAL_ID.replace("ID", "call.id")
    + "{{ (call.function | tojson)[:-1] + ', \"id\": \"' + call.id + '\"}' + (']</s>' if loop.last else ', ') }}"
    "{% endfor %}"
    "{% elif message.role == 'assistant' %}{{ ' ' + message.content + '</s>' }}"
    "{% elif message.role == 'tool' %}"
    + _MISTRAL_ID.replace("ID", "message.tool_call_id")
    + '{{ \'[TOOL_RESULTS] {"content": \' + (message.content | tojson) + \', "call_id": "\' + message.tool_call_id }}'
    "{{ '\"}[/TOOL_RESULTS]' }}"
    "{% else %}{{ raise_exception('roles') }}{% endif %}{% endfor %}"
)

TEKKEN = (
    "{{ bos_token }}{% set turns = messages[1:] if messages[0].role == 'system' else messages %}" + _MISTRAL_CHECK + ""
    "{% if messages[0].role == 'system' %}{{ '[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]' }}{% endif %}"
    "{% if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{% for message in turns %}{% if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}"
    "{% elif message.role == 'assistant' %}{{ message.content }}{% for call in message.tool_calls %}"
    "{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}{% endfor %}{{ '</s>' }}"
    "{% elif message.role == 'tool' %}"
    "{{ '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}{% endif %}{% endfor %}"
)

PHI3 = (
    "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)

DEEPSEEK_DISTILL = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% for message in messages %}{% if message.role == 'user' %}{{ '<|User|>' + message.content }}"
    "{% elif message.role == 'assistant' and message.tool_calls %}{{ '<|Assistant|>' }}"
    "{% for call in message.tool_calls %}"
    "{{ '<|call|>' + call.type + '<|sep|>' + call.function.name + '\n```json\n' + call.function.arguments + '\n```' }}"
    "{% endfor %}{{ eos_token }}"
    "{% elif message.role == 'assistant' %}{{ '<|Assistant|>' + message.content.split('</think>')[-1] + eos_token }}"
    "{% elif message.role == 'tool' %}{{ '<|outputs|>' + message.content + '<|/outputs|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
)

GRANITE = (
    "{{ '<|start_of_role|>system<|end_of_role|>' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}{{ 'You are Granite.' }}{% endif %}"
    "{{ '<|end_of_text|>\n' }}{% if tools %}"
    "{{ '<|start_of_role|>available_tools<|end_of_role|>' + (tools | tojson(indent=4)) + '<|end_of_text|>\n' }}"
    "{% endif %}"
    "{% for message in messages %}{% if message.role != 'system' %}"
    "{{ '<|start_of_role|>' + ('tool_response' if message.role == 'tool' else message.role) + '<|end_of_role|>' }}"
    "{{ message.content }}{% if message.tool_calls %}{{ '<|tool_call|>[' }}{% for call in message.tool_calls %}"
    "{{ (call.function | tojson) + ('' if loop.last else ', ') }}{% endfor %}{{ ']' }}{% endif %}"
    "{{ '<|end_of_text|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
)

GLM4 = (
    "{{ '[gMASK]<sop>' }}{% if tools %}{{ '<|system|>\n# Tools' }}{% for tool in tools %}"
    "{{ '\n\n' + (tool.function | tojson(indent=4)) }}{% endfor %}{% endif %}"
    "{% for message in messages %}{% if message.role == 'tool' %}{{ '<|observation|>\n' + message.content }}"
    "{% elif message.tool_calls %}{% for call in message.tool_calls %}"
    "{{ '<|assistant|>' + call.function.name + '\n' + (call.function.arguments | tojson) }}{% endfor %}"
    "{% else %}{{ '<|' + message.role + '|>\n' + message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)

QWEN35 = (
    "{% set ns = namespace(query=-1) %}{% for message in messages %}"
    "{% if message.role == 'user' %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}"
    "{% if tools %}{{ '<|im_start|>system\n# Tools\n\n<tools>' }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}"
    "{% endfor %}{{ '\n</tools>\n\nAnswer with <function=name> and <parameter=name> inside of <tool_call>' }}"
    "{% if messages[0].role == 'system' %}{{ '\n\n' + messages[0].content }}{% endif %}{{ '<|im_end|>\n' }}"
    "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{% endif %}{% if ns.query < 0 %}{{ raise_exception('there is no user query') }}{% endif %}"
    "{% for message in messages %}{% set said = message.content | trim %}"
    "{% if message.role == 'system' %}{% if not loop.first %}{{ raise_exception('system comes first') }}{% endif %}"
    "{% elif message.role == 'user' %}{{ '<|im_start|>user\n' + said + '<|im_end|>\n' }}"
    "{% elif message.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% if loop.index0 > ns.query %}"
    "{{ '<think>\n' + (message.reasoning_content or '') | trim + '\n</think>\n\n' }}{% endif %}{{ said }}"
    "{% for call in message.tool_calls %}{{ ('\n\n' if said else '') if loop.first else '\n' }}"
    "{{ '<tool_call>\n<function=' + call.function.name + '>\n' }}"
    "{% for key, value in call.function.arguments | items %}{{ '<parameter=' + key + '>\n' }}"
    "{{ (value | tojson) if value is mapping or (value is sequence and value is not string) else (value | string) }}"
    "{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif message.role == 'tool' %}"
    + _QWEN_RESULT
    + "{% else %}{{ raise_exception('an unknown role') }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)

GLM45 = (
    "{{ '[gMASK]<sop>' }}{% if tools %}{{ '<|system|>\n# Tools\n<tools>\n' }}"
    "{% for tool in tools %}{{ (tool | tojson) + '\n' }}{% endfor %}{{ '</tools>' }}{% endif %}"
    "{% set ns = namespace(query=-1) %}{% for message in messages %}"
    "{% if message.role == 'user' %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% if message.role == 'user' %}{{ '<|user|>\n' + message.content }}"
    "{% elif message.role == 'assistant' %}{{ '<|assistant|>' }}"
    "{% if loop.index0 > ns.query and message.reasoning_content %}"
    "{{ '\n<think>' + message.reasoning_content | trim + '</think>' }}{% else %}{{ '\n<think></think>' }}{% endif %}"
    "{% if message.content | trim %}{{ '\n' + message.content | trim }}{% endif %}"
    "{% for call in message.tool_calls %}{{ '\n<tool_call>' + call.function.name + '\n' }}"
    "{% for key, value in call.function.arguments.items() %}{{ '<arg_key>' + key + '</arg_key>\n' }}"
    "{{ '<arg_value>' + (value if value is string else value | tojson) + '</arg_value>\n' }}{% endfor %}"
    "{{ '</tool_call>' }}{% endfor %}"
    "{% elif message.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|observation|>' }}{% endif %}"
    "{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{% elif message.role == 'system' %}{{ '<|system|>\n' + message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_LFM = (
    "{{ bos_token }}{% set ns = namespace(system='', turns=messages) %}"
    "{% if messages[0].role == 'system' %}{% set ns.system = messages[0].content %}"
    "{% set ns.turns = messages[1:] %}{% endif %}"
    "{% if tools %}{% set ns.system = ns.system + '\nList of tools: [' %}"
    "{% for tool in tools %}{% set ns.system = ns.system + (tool | tojson) + ('' if loop.last else ', ') %}{% endfor %}"
    "{% set ns.system = ns.system + ']' %}{% endif %}"
    "{% if ns.system %}{{ '<|im_start|>system\n' + ns.system + '<|im_end|>\n' }}{% endif %}"
    "{% for message in ns.turns %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'tool' %}"
    "{{ '<|tool_response_start|>' + message.content + '<|tool_response_end|>' }}{% else %}CALLS{{ message.content }}"
    "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LFM2 = _LFM.replace("CALLS", "")
LFM25 = _LFM.replace(
    "CALLS{{ message.content }}",
    "{{ message.content }}{% if message.tool_calls %}{{ '<|tool_call_start|>[' }}{% for call in message.tool_calls %}"
    "{{ call.function.name + '(' }}{% for key, value in call.function.arguments | items %}"
    "{{ key + '=' + (value | tojson) + ('' if loop.last else ', ') }}{% endfor %}"
    "{{ ')' + ('' if loop.last else ', ') }}{% endfor %}{{ ']<|tool_call_end|>' }}{% endif %}",
)


DEEPSEEK3 = (
    "{{ bos_token }}{% set ns = namespace(user=false) %}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% for message in messages %}{% if message.role == 'user' %}{% set ns.user = true %}"
    "{{ '<｜User｜>' + message.content }}"
    "{% elif message.role == 'assistant' %}{% if ns.user %}{{ '<｜Assistant｜>' }}{% endif %}"
    "{% set ns.user = false %}{{ message.content or '' }}"
    "{% for call in message.tool_calls %}{{ '<｜tool▁calls▁begin｜>' if loop.first else '' }}"
    "{{ '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' + call.function.arguments }}"
    "{{ '<｜tool▁call▁end｜>' + ('<｜tool▁calls▁end｜>' if loop.last else '') }}{% endfor %}{{ eos_token }}"
    "{% elif message.role == 'tool' %}{% set ns.user = false %}"
    "{{ '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and ns.user %}{{ '<｜Assistant｜>' }}{% endif %}"
)

KIMI2 = (
    "{% if tools %}{{ '<|im_system|>tool_declare<|im_middle|>' + (tools | tojson) + '<|im_end|>' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_' + (message.role if message.role in ('user', 'assistant') else 'system') + '|>' + message.role }}"
    "{{ '<|im_middle|>' }}{% if message.role == 'tool' %}"
    "{{ '## Return of ' + message.tool_call_id + '\n' + message.content }}"
    "{% else %}{{ message.content or '' }}{% endif %}"
    "{% for call in message.tool_calls %}{{ '<|tool_calls_section_begin|>' if loop.first else '' }}"
    "{{ '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' + (call.function.arguments | tojson) }}"
    "{{ '<|tool_call_end|>' + ('<|tool_calls_section_end|>' if loop.last else '') }}{% endfor %}{{ '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}"
)

MINIMAX2 = (
    "{{ ']~!b[]~b]system\n' + (messages[0].content if messages[0].role == 'system' else 'You are MiniMax.') }}"
    "{% if tools %}{{ '\n\n# Tools\n<tools>' }}{% for tool in tools %}{{ '\n<tool>' + (tool.function | tojson) }}"
    "{{ '</tool>' }}{% endfor %}{{ '\n</tools>' }}{% endif %}{{ '[e~[\n' }}"
    "{% for message in messages %}{% if message.role == 'user' %}{{ ']~b]user\n' + message.content + '[e~[\n' }}"
    "{% elif message.role == 'assistant' %}{{ ']~b]ai\n' }}"
    "{% if message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{ message.content or '' }}{% if message.tool_calls %}{{ '\n<minimax:tool_call>\n' }}"
    "{% for call in message.tool_calls %}{{ '<invoke name=\"' + call.function.name + '\">' }}"
    "{% for key, value in call.function.arguments | items %}{{ '\n<parameter name=\"' + key + '\">' }}"
    "{{ (value if value is string else value | tojson) + '</parameter>' }}{% endfor %}{{ '\n</invoke>\n' }}{% endfor %}"
    "{{ '</minimax:tool_call>' }}{% endif %}{{ '[e~[\n' }}"
    "{% elif message.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ ']~b]tool' }}{% endif %}"
    "{{ '\n<response>' + message.content + '</response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '[e~[\n' }}{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ ']~b]ai\n<think>\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """A template, the tokens that go with it, and what is expected of it."""

    template: str
    eos: str
    tool_format: str
    """Name of the tool format that is found."""
    special: Sequence[str] = ()
    added: Sequence[str] = ()
    thinks: bool = False
    """Whether its models think."""
    forks: Sequence[int] = ()
    """Which calls of `conversation` the template forks."""
    extra_eos: Sequence[str] = ()
    """Further tokens that end an answer."""
    exact: bool = True
    """Whether the template renders what was sampled as it was sampled: it moves no white space and adds no call ids."""

    def tokenizer(self):
        """A fresh tokenizer."""
        return small_tokenizer(self.template, self.eos, special=self.special, added=self.added)


_CHATML_THINK = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_MISTRAL_TOKENS = ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
_MISTRAL_TOKENS = (*_MISTRAL_TOKENS, "[TOOL_CALLS]")
_TEKKEN_TOKENS = (*_MISTRAL_TOKENS, "[ARGS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")
_PHI_TOKENS = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|endoftext|>", "<|tool|>", "<|/tool|>")
_GRANITE_TOKENS = ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>")
_GLM_TOKENS = ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", "<|endoftext|>")
_GLM_NEW_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>")
_GLM_NEW_TOKENS = (*_GLM_NEW_TOKENS, "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>")
_LFM_TOKENS = ("<|tool_call_start|>", "<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>")
_DEEPSEEK3_TOKENS = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", *DEEPSEEK.markers)
_DEEPSEEK3_TOKENS = (*_DEEPSEEK3_TOKENS, "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>")
_KIMI_TOKENS = ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", *KIMI.markers)
_MINIMAX_TOKENS = ("]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>")
_DEEPSEEK_TOKENS = (
    "<|User|>",
    "<|Assistant|>",
    "<|end_of_sentence|>",
    "<|call|>",
    "<|sep|>",
    "<|outputs|>",
    "<|/outputs|>",
)

FAMILIES = {
    "llama 2": Family(LLAMA2, "</s>", "hermes", exact=False),
    "llama 3.1": Family(LLAMA31, "<|eot_id|>", "llama3", special=["<|python_tag|>"]),
    "qwen 2.5": Family(QWEN25, "<|im_end|>", "hermes", added=_CHATML_THINK[2:]),
    "qwen 3": Family(QWEN3, "<|im_end|>", "hermes", added=_CHATML_THINK, thinks=True, forks=[2, 4]),
    "mistral v3": Family(MISTRAL3, "</s>", "mistral", special=_MISTRAL_TOKENS, forks=[2, 3, 4], exact=False),
    "mistral tekken": Family(TEKKEN, "</s>", "mistral", special=_TEKKEN_TOKENS),
    "gemma 2": Family(GEMMA, "<end_of_turn>", "hermes"),
    "phi 3": Family(PHI3, "<|endoftext|>", "hermes", special=_PHI_TOKENS),
    "smollm 3": Family(SMOLLM3, "<|im_end|>", "hermes", added=_CHATML_THINK, thinks=True, exact=False),
    "deepseek r1 distill": Family(
        DEEPSEEK_DISTILL,
        "<|end_of_sentence|>",
        "hermes",
        special=_DEEPSEEK_TOKENS,
        added=_CHATML_THINK[:2],
        thinks=True,
        forks=[1, 2, 3, 4],
    ),
    "granite 3": Family(GRANITE, "<|end_of_text|>", "json", special=_GRANITE_TOKENS),
    "glm 4": Family(GLM4, "<|endoftext|>", "hermes", special=_GLM_TOKENS, extra_eos=["<|user|>", "<|observation|>"]),
    "qwen 3.5": Family(QWEN35, "<|im_end|>", "xml", added=_CHATML_THINK, thinks=True, forks=[2, 4]),
    "glm 4.5": Family(
        GLM45,
        "<|endoftext|>",
        "xml",
        special=_GLM_TOKENS,
        added=_GLM_NEW_TOKENS,
        thinks=True,
        forks=[2, 4],
        extra_eos=["<|user|>", "<|observation|>"],
        exact=False,
    ),
    "deepseek v3": Family(DEEPSEEK3, "<｜end▁of▁sentence｜>", "deepseek", special=_DEEPSEEK3_TOKENS),
    "kimi k2": Family(KIMI2, "<|im_end|>", "kimi", special=_KIMI_TOKENS),
    "minimax m2": Family(
        MINIMAX2, "[e~[", "xml", special=_MINIMAX_TOKENS, added=_CHATML_THINK[:2], thinks=True, exact=False
    ),
    "lfm 2": Family(LFM2, "<|im_end|>", "pythonic", special=_LFM_TOKENS),
    "lfm 2.5": Family(LFM25, "<|im_end|>", "pythonic", special=_LFM_TOKENS),
}
