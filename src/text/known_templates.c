/* known_templates.c - the chat templates whose output chat.c makes, as far as a conversation
 * without tools reaches them.  Text is compared in its normal form (template.c): {{ANY}} stands for
 * statements that are never reached, @ for whatever a literal says in its place. */
#include "text/template.h"

#define CHATML_TURN                                                                                \
    "{{'<|im_start|>' + message.role + '\\n' + message.content + "                                 \
    "'<|im_end|>\\n'}}"
#define CHATML_PROMPT "{% if add_generation_prompt %}{{'<|im_start|>assistant\\n'}}{% endif %}"
#define CHATML_LOOP   "{% for message in messages %}" CHATML_TURN "{% endfor %}" CHATML_PROMPT
#define QWEN_SYSTEM                                                                                \
    "{% if messages[0].role == 'system' %}"                                                        \
    "{{'<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n'}}"
#define QWEN_OTHERS                                                                                \
    "{% if (message.role == 'user') or (message.role == 'system' and not loop.first)"
#define QWEN_TOOL "{% elif message.role == 'tool' %}{{ANY}}{% endif %}{% endfor %}"
#define QWEN_TURN "{{'<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n'}}"
/* The thoughts of an answer, and where they are shown. */
#define QWEN3_QUESTION(is_string)                                                                  \
    "{% set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}"         \
    "{% for message in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}"     \
    "{% if ns.multi_step_tool and message.role == 'user' and " is_string                           \
    "not(message.content.startswith('<tool_response>') and "                                       \
    "message.content.endswith('</tool_response>')) %}"                                             \
    "{% set ns.multi_step_tool = false %}{% set ns.last_query_index = index %}{% endif %}"         \
    "{% endfor %}{% for message in messages %}"
#define QWEN3_SHOW                                                                                 \
    "{% if loop.index0 > ns.last_query_index %}"                                                   \
    "{% if loop.last or (not loop.last and reasoning_content) %}"                                  \
    "{{'<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + "        \
    "'\\n</think>\\n\\n' + content.lstrip('\\n')}}"                                                \
    "{% else %}{{'<|im_start|>' + message.role + '\\n' + content}}{% endif %}"                     \
    "{% else %}{{'<|im_start|>' + message.role + '\\n' + content}}{% endif %}"                     \
    "{{'<|im_end|>\\n'}}" QWEN_TOOL "{% if add_generation_prompt %}{{'<|im_start|>assistant\\n'}}" \
    "{% if enable_thinking is defined and enable_thinking is false %}{{ANY}}{% endif %}{% endif "  \
    "%}"
#define LLAMA_TURN                                                                                 \
    "'<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + "                          \
    "message.content | trim + '<|eot_id|>'"
#define LLAMA_PROMPT                                                                               \
    "{% if add_generation_prompt %}{{'<|start_header_id|>assistant<|end_header_id|>\\n\\n'}}"      \
    "{% endif %}"
#define LLAMA_CUT_OFF "Cutting Knowledge Date: December 2023\\nToday Date: "

const acr_known_template acr_known_templates[] = {
    {{.format = ACR_CHAT_CHATML, .any_role = true}, CHATML_LOOP},
    {{.format = ACR_CHAT_CHATML, .any_role = true},
     "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"
     "{% endif %}" CHATML_LOOP},
    {{.format = ACR_CHAT_CHATML, .any_role = true, .default_system = (char[]){"%s"}},
     "{% for message in messages %}{% if loop.first and messages[0].role != 'system' %}"
     "{{'<|im_start|>system\\n@<|im_end|>\\n'}}{% endif %}" CHATML_TURN
     "{% endfor %}" CHATML_PROMPT},
    /* Qwen2.5 */
    {{.format = ACR_CHAT_CHATML, .default_system = (char[]){"%s"}},
     QWEN_SYSTEM "{% else %}{{'<|im_start|>system\\n@<|im_end|>\\n'}}{% endif %}"
                 "{% for message in messages %}" QWEN_OTHERS
                 " or (message.role == 'assistant' and not message.tool_calls) %}" CHATML_TURN
                 "{% elif message.role == 'assistant' %}{{ANY}}" QWEN_TOOL CHATML_PROMPT},
    /* Qwen3 that does not think */
    {{.format = ACR_CHAT_CHATML},
     QWEN_SYSTEM "{% endif %}{% for message in messages %}"
                 "{% set content = message.content %}" QWEN_OTHERS " %}" QWEN_TURN
                 "{% elif message.role == 'assistant' %}" QWEN_TURN QWEN_TOOL CHATML_PROMPT},
    /* Qwen3 */
    {{.format = ACR_CHAT_CHATML, .thinks = true},
     QWEN_SYSTEM "{% endif %}" QWEN3_QUESTION("") QWEN_OTHERS
     " %}" CHATML_TURN "{% elif message.role == 'assistant' %}{% set content = message.content %}"
     "{% set reasoning_content = '' %}"
     "{% if message.reasoning_content is defined and message.reasoning_content is not none %}"
     "{% set reasoning_content = message.reasoning_content %}"
     "{% else %}{% if '</think>' in message.content %}"
     "{% set content = message.content.split('</think>')[-1].lstrip('\\n') %}"
     "{% set reasoning_content = message.content.split('</think>')[0].rstrip('\\n')"
     ".split('<think>')[-1].lstrip('\\n') %}{% endif %}{% endif %}" QWEN3_SHOW},
    {{.format = ACR_CHAT_CHATML, .thinks = true},
     QWEN_SYSTEM "{% endif %}" QWEN3_QUESTION(
         "message.content is string and ") "{% set content = message.content %}" QWEN_OTHERS
                                           " %}" QWEN_TURN "{% elif message.role == 'assistant' "
                                           "%}{% set reasoning_content = '' %}"
                                           "{% if message.reasoning_content is string %}"
                                           "{% set reasoning_content = message.reasoning_content %}"
                                           "{% else %}{% if '</think>' in content %}"
                                           "{% set reasoning_content = "
                                           "content.split('</"
                                           "think>')[0].rstrip('\\n').split('<think>')[-1]"
                                           ".lstrip('\\n') %}"
                                           "{% set content = "
                                           "content.split('</think>')[-1].lstrip('\\n') %}{% endif "
                                           "%}"
                                           "{% endif %}" QWEN3_SHOW},
    /* llama-3 */
    {{.format = ACR_CHAT_LLAMA3, .any_role = true, .uses_bos = true},
     "{% set loop_messages = messages %}{% for message in loop_messages %}"
     "{% set content = " LLAMA_TURN " %}"
     "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{content}}"
     "{% endfor %}" LLAMA_PROMPT},
    /* llama-3.1 and 3.3, with a date that is always the same */
    {{.format = ACR_CHAT_LLAMA3,
      .uses_bos = true,
      .preface = (char[]){"Cutting Knowledge Date: December 2023\nToday Date: %s\n\n"}},
     "{{bos_token}}{% set tools_in_user_message = true %}{% set date_string = '@' %}"
     "{% if messages[0].role == 'system' %}"
     "{% set system_message = messages[0].content|trim %}{% set messages = messages[1:] %}"
     "{% else %}{% set system_message = '' %}{% endif %}"
     "{{'<|start_header_id|>system<|end_header_id|>\\n\\n" LLAMA_CUT_OFF "' + date_string + "
     "'\\n\\n'}}{{system_message}}{{'<|eot_id|>'}}{% for message in messages %}"
     "{% if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}"
     "{{" LLAMA_TURN "}}{% elif 'tool_calls' in message %}{{ANY}}"
     "{% elif message.role == 'tool' or message.role == 'ipython' %}{{ANY}}{% endif %}"
     "{% endfor %}" LLAMA_PROMPT},
};

const int acr_n_known_templates = ACR_COUNT(acr_known_templates);
