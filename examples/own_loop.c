/* own_loop.c - your own training loop, with accrue's window doing the accumulation.
 *
 * A linear model y = w x + b with mean squared error.  The gradients are computed right here; the
 * library only sees the arrays.  Eight micro-batches of two rows, four to a window, are trained
 * beside the same sixteen rows in two complete batches; both must end at the same weights. */
#include <accrue/accrue.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 16, INPUTS = 3, EPOCHS = 50 };

static double inputs[ROWS][INPUTS], targets[ROWS];

typedef struct model {
    double weight[INPUTS], bias[1];
    double weight_grad[INPUTS], bias_grad[1];
} model;

static void check(accrue_status status, const accrue_error *err)
{
    if (!status)
        return;
    fprintf(stderr, "own_loop: %s: %s\n", accrue_status_name(status), err->message);
    exit(EXIT_FAILURE);
}

static void make_data(void)
{
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < INPUTS; i++)
            inputs[r][i] = sin(1.0 + r * (i + 2.0));
        targets[r] = 0.5 * inputs[r][0] - 0.3 * inputs[r][1] + 0.8 * inputs[r][2] + 0.1;
    }
}

/* Mean squared error over rows [first, first + n), and its gradient. */
static double forward_backward(model *m, int first, int n)
{
    double loss = 0.0;

    m->bias_grad[0] = 0.0;
    for (int i = 0; i < INPUTS; i++)
        m->weight_grad[i] = 0.0;
    for (int r = first; r < first + n; r++) {
        double error = m->bias[0] - targets[r];
        for (int i = 0; i < INPUTS; i++)
            error += m->weight[i] * inputs[r][i];
        loss += error * error / n;
        m->bias_grad[0] += 2.0 * error / n;
        for (int i = 0; i < INPUTS; i++)
            m->weight_grad[i] += 2.0 * error * inputs[r][i] / n;
    }
    return loss;
}

/* Trains with `rows` rows to a micro-batch and `n` micro-batches to an optimizer step. */
static void train(model *m, int rows, int n)
{
    accrue_error err = {0};
    accrue_window_options opt;
    accrue_window *window = NULL;
    bool stepped = false;

    accrue_window_options_init(&opt, sizeof opt);
    opt.gradient_accumulation_steps = n;
    opt.optimizer = ACCRUE_ADAMW;
    opt.lr = 0.05;
    opt.weight_decay = 0.0;
    opt.warmup_steps = 5;
    opt.total_steps = EPOCHS * accrue_steps_per_epoch(ROWS / rows, n, ACCRUE_TAIL_DROP);
    check(accrue_window_create(&window, &opt, &err), &err);
    check(accrue_window_add_param(window, "weight", ACCRUE_F64, m->weight, m->weight_grad, INPUTS,
                                  1, &err),
          &err);
    check(accrue_window_add_param(window, "bias", ACCRUE_F64, m->bias, m->bias_grad, 1, 1, &err),
          &err);

    printf("%d rows to a micro-batch, %d micro-batches to a step\n", rows, n);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        for (int first = 0; first < ROWS; first += rows) {
            double loss = forward_backward(m, first, rows);
            /* The gradient is a mean already, so the micro-batch weighs 1. */
            check(accrue_window_backward(window, loss, 1.0, &err), &err);
            check(accrue_window_clip(window, NULL, &err), &err);
            check(accrue_window_step(window, &stepped, &err), &err);
            if (stepped && accrue_window_global_step(window) % 25 == 0)
                printf("  micro-batch %3lld, step %3lld: loss %.6f, lr %.5f\n",
                       (long long)accrue_window_micro_batches(window),
                       (long long)accrue_window_global_step(window), accrue_window_loss(window),
                       accrue_window_lr(window));
            accrue_window_lr_step(window);
            accrue_window_zero_grad(window);
        }
    }
    accrue_window_free(window);
}

int main(void)
{
    model accumulated = {0}, complete = {0};
    double largest = 0.0;

    make_data();
    train(&accumulated, 2, 4);
    train(&complete, 8, 1);
    for (int i = 0; i < INPUTS; i++)
        largest = fmax(largest, fabs(accumulated.weight[i] - complete.weight[i]));
    largest = fmax(largest, fabs(accumulated.bias[0] - complete.bias[0]));
    printf("weights %.6f %.6f %.6f, bias %.6f; largest difference %.2g\n", accumulated.weight[0],
           accumulated.weight[1], accumulated.weight[2], accumulated.bias[0], largest);
    if (!(largest <= 1e-12)) {
        fprintf(stderr, "own_loop: accumulation and complete batches differ by %g\n", largest);
        return EXIT_FAILURE;
    }
    puts("accumulation equals the complete batch");
    return EXIT_SUCCESS;
}
