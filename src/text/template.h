/* template.h - which of the chat formats a chat template describes; of chat.c and template.c. */
#ifndef ACR_TEXT_TEMPLATE_H
#define ACR_TEXT_TEMPLATE_H

#include "text/text.h"

/* What template.c can tell from a template's text alone. */
typedef struct acr_template {
    acr_chat_format format;
    bool thinks, any_role, uses_bos; /* as in acr_chat; that it begins with the bos token */
    char *default_system, *preface;  /* acr_free; NULL: none */
} acr_template;

typedef struct acr_known_template {
    acr_template is; /* default_system, preface: "%s" is what stands for @; NULL: none */
    const char *text;
} acr_known_template;
extern const acr_known_template acr_known_templates[];
extern const int acr_n_known_templates;

/* ENOTSUP, with `name`, for a template that is not known to be one of those that chat.c follows. */
accrue_status acr_template_read(acr_template *out, const char *text, size_t bytes, const char *name,
                                accrue_error *err);

#endif
