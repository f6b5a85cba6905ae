#include "data/data.h"
void acr_vocab_free(acr_vocab *v) { acr_free(v->d2t); acr_free(v->t2d); v->d2t = NULL; v->t2d = NULL; }
