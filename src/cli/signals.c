/* signals.c - SIGTERM, SIGINT and SIGHUP end a run at the end of its window and other long calls at
 * the next progress; SIGUSR1 saves a run. */
#include "cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* `timeout` and the like send the same signal to a process and to its group: one wish, twice. */
static const double echo_seconds = 0.5;

static volatile sig_atomic_t begun, stop_signal, save_asked;
static struct timespec stopped_at;
static double grace_seconds;
static bool of_job;

static double since_stopped(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - stopped_at.tv_sec) +
           1e-9 * (double)(now.tv_nsec - stopped_at.tv_nsec);
}

/* While data is checked there is nothing to save, and may be a lock that is waited for.  A rank
 * that leaves others behind has to look failed, so that the launcher ends them. */
static void stop_before(int number)
{
    static const char text[] = "accrue: notice: stopped before training began\n";
    bool told = cli_is_muted() || write(STDERR_FILENO, text, sizeof text - 1) >= 0;

    _exit(!told || number == SIGINT ? EXIT_INTERRUPTED : of_job ? 128 + number : 0);
}

/* The second one does not wait for anything: what is under way on the disk is left, and comes to no
 * name. */
static void on_stop(int number)
{
    if (!begun)
        stop_before(number);
    if (stop_signal && since_stopped() > echo_seconds)
        _exit(128 + number);
    if (stop_signal)
        return;
    clock_gettime(CLOCK_MONOTONIC, &stopped_at);
    stop_signal = number;
}

static void on_save(int number)
{
    (void)number;
    save_asked = 1;
}

/* What is mapped and is no longer there. */
static void on_lost(int number)
{
    static const char text[] =
        "accrue: a file was cut while it was read, or its disk failed (SIGBUS)\n";

    (void)number;
    _exit(write(STDERR_FILENO, text, sizeof text - 1) >= 0 ? EXIT_FAILURE : 128 + SIGBUS);
}

/* What the parent has made ignored, as nohup does, stays so. */
static void handle(int number, void (*handler)(int))
{
    struct sigaction before, action = {.sa_handler = handler, .sa_flags = SA_RESTART};

    if (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(number, &action, NULL);
}

void signals_of_files(void)
{
    signal(SIGXFSZ, SIG_IGN); /* a file over the limit is an error like a full disk */
    signal(SIGBUS, on_lost);
}

static void catch_stops(void)
{
    handle(SIGINT, on_stop);
    handle(SIGTERM, on_stop);
    handle(SIGHUP, on_stop);
    signal(SIGPIPE, SIG_IGN); /* who read the progress has left; the work has not */
}

void signals_catch(void)
{
    signals_begin();
    catch_stops();
}

void signals_catch_run(double grace, bool of_several)
{
    grace_seconds = grace;
    of_job = of_several;
    catch_stops();
    handle(SIGUSR1, on_save);
}

void signals_over(void)
{
    const int all[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        signal(all[i], SIG_IGN);
}

void signals_begin(void)
{
    begun = 1;
}

int signals_answer(void)
{
    if (stop_signal)
        return since_stopped() < grace_seconds ? ACCRUE_SAVE_AND_STOP : ACCRUE_GIVE_UP_AND_STOP;
    if (!save_asked)
        return ACCRUE_GO_ON;
    save_asked = 0;
    return ACCRUE_SAVE;
}

int signals_stopped(void)
{
    return stop_signal;
}

const char *signals_name(int number)
{
    switch (number) {
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    case SIGHUP: return "SIGHUP";
    }
    return "";
}
