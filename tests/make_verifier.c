/* make_verifier.c - make_verifier DIR VOCAB SEED [DATA TEMPLATE]: the small verifier of
 * whole_verifier.h in a folder that is there, with the chat of DATA/chat where these are given. */
#include "whole_verifier.h"

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 6) {
        fprintf(stderr, "make_verifier DIR VOCAB SEED [DATA TEMPLATE]\n");
        return 2;
    }
    write_whole_verifier(argv[1], atoi(argv[2]), strtoull(argv[3], NULL, 10));
    if (argc == 6)
        write_whole_chat(argv[1], argv[4], argv[5]);
    return 0;
}
