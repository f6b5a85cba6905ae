/* eval_files.c - DIR: writes a random verifier with a tokenizer, DIR/verifier, and a random draft
 * for it that names it as its own, DIR/draft; for tests of the command. */
#include "infer_files.h"

int main(int argc, char **argv)
{
    char *verifier = argc == 2 ? path_below(argv[1], "verifier") : NULL;
    char *draft = argc == 2 ? path_below(argv[1], "draft") : NULL;

    if (!verifier || mkdir(argv[1], 0777) || mkdir(verifier, 0777) || mkdir(draft, 0777))
        return 1;
    verifier_write(verifier, 300, IM_END, 5);
    tokenizer_write(verifier);
    draft_write_for(draft, 300, 120, 1, true, verifier, 6);
    acr_free(verifier);
    acr_free(draft);
    return 0;
}
