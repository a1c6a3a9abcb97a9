#include "executor/flights.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "executor/devwire.h"
#include "executor/prints.h"

enum { MOST_REPORTED = 256 }; // flights that are kept behind their end

// To wake the broker takes as long as a launch. While there are commands to launch it is woken for
// several completions at once: as many, or those of so long.
enum { MOST_UNTOLD = 16, UNTOLD_NS = 40000 };

// For what clients have begun by their lanes, and know the end of, it is not woken, as long as it
// looks now and then: but for so many, that they have room.
enum { MOST_QUIET = 256 };

struct failure {
    struct opd_err err;
    struct backend_miss miss;
};

struct flight {
    uint64_t seq;
    uint32_t n_reports;      // of kernels
    uint32_t steps;          // how many had begun
    unsigned stamp;          // the second of its two; 0: it is not timed
    struct word *word;       // of its client, or NULL
    uint32_t version;        // that it is told with it
    uint32_t lane;           // of an entry of a lane: its slot, from 1; else 0
    struct failure *failure; // owned; NULL: nothing is known to be wrong
};

void flights_tell(struct executor *ex)
{
    if (ex->n_untold > 0 && !ring_is_empty(&ex->done))
        ring_alert(&ex->done);
    ex->n_untold = ex->n_urgent = 0;
}

bool flights_hold_up(const struct executor *ex)
{
    return ex->ops == &backend_cpu || !ex->steps.shares_marks;
}

bool flights_must_tell(const struct executor *ex, bool idle)
{
    bool now = idle || flights_hold_up(ex);
    return (now && ex->n_urgent > 0) || ex->n_untold >= MOST_UNTOLD ||
           (ex->n_untold > 0 && clock_ns() - ex->untold_since >= UNTOLD_NS);
}

static uint64_t time_flight(struct executor *ex, const struct flight *flight)
{
    struct opd_err err;
    uint64_t ns = 0;
    opd_err_init(&err);
    if (flight->stamp && !ex->ops->elapsed(ex->be, flight->stamp - 1, flight->stamp, &ns, &err))
        log_warn("timing a run: %s", err.msg);
    opd_err_clear(&err);
    return ns;
}

// The client goes on at once where there is nothing to say but that its command is done; the broker
// hears of it later. Should this process end in between, it is known to be good: nothing behind it
// has failed.
static bool tell_client(const struct executor *ex, const struct flight *flight,
                        const struct dev_done *done, bool *out_sleeps)
{
    bool plain = !done->code && !done->fatal && !done->report && !done->printed && !done->dropped &&
                 atomic_load(&ex->progress->failed) < flight->seq;
    if (plain && flight->word) // what its kernels have reported the broker is not told before that
        atomic_store(&ex->progress->good, flight->seq);
    return flight->word && word_tell(flight->word, plain, flight->version, out_sleeps);
}

static void post_done(struct executor *ex, const struct flight *flight, bool fatal)
{
    const struct failure *failure = flight->failure;
    const char *why = failure ? failure->err.msg : "";
    size_t length = strlen(why), printed = fatal ? 0 : prints_of(flight->seq);
    uint32_t size = (uint32_t)(sizeof(struct dev_done) + length + 1 + printed);
    struct dev_done *done;
    bool sleeps = false;
    // The broker always empties its ring; where it is gone, so are we (the socket ends).
    while (!(done = ring_reserve(&ex->done, size))) {
        flights_tell(ex);
        usleep(100);
    }
    done->seq = flight->seq;
    done->at = clock_ns();
    done->report = steps_report(&ex->steps, flight->n_reports, &done->reporter);
    done->ran = time_flight(ex, flight);
    done->code = failure ? failure->err.code : OPD_E_none;
    done->miss = failure ? failure->miss : (struct backend_miss){ 0 };
    done->fatal = fatal;
    done->steps = flight->steps;
    memcpy(done->message, why, length + 1);
    done->printed = (uint32_t)printed;
    done->dropped = printed ? prints_read(done->message + length + 1, printed) : 0;
    done->told = tell_client(ex, flight, done, &sleeps);
    bool quiet = flight->lane && done->told;
    if (flight->lane)
        lanes_ended(&ex->lanes, flight->lane - 1);
    uint64_t at = done->at;
    ex->n_urgent += !done->told;
    ring_publish(&ex->done);
    if (sleeps) // and not before: its next request comes to a broker that has heard of this one
        word_wake(flight->word);
    if (quiet && ++ex->n_quiet % MOST_QUIET == 0)
        ring_alert(&ex->done);
    else if (!quiet && ex->n_untold++ == 0)
        ex->untold_since = at;
    if (printed)
        prints_clear(); // not before: from here on it is the broker's
}

static struct flight *first_flight(const struct executor *ex)
{
    return (struct flight *)(void *)ex->flights.bytes + ex->first_flight;
}

static void pop_flight(struct executor *ex)
{
    struct failure *failure = first_flight(ex)->failure;
    if (failure)
        opd_err_clear(&failure->err);
    free(failure);
    steps_reported(&ex->steps, first_flight(ex)->n_reports);
    ex->first_flight++;
    ex->n_flights--;
    if (ex->n_flights > 0 && ex->first_flight < MOST_REPORTED)
        return;
    buf_consume(&ex->flights, ex->first_flight * sizeof(struct flight));
    ex->first_flight = 0;
}

bool flights_report(struct executor *ex, struct opd_err *err)
{
    uint64_t mark = 0;
    bool works = ex->ops->poll(ex->be, &mark, err);
    if (!ex->steps.shares_marks)
        atomic_store_explicit(&ex->progress->passed, mark, memory_order_release);
    if (!works)
        atomic_store(&ex->progress->exact, 1); // it will not move any more
    while (ex->n_flights > 0 && dev_mark(first_flight(ex)->seq, DEV_MARK_END) <= mark) {
        post_done(ex, first_flight(ex), false);
        pop_flight(ex);
    }
    return works;
}

bool flights_drain(struct executor *ex, struct opd_err *err)
{
    flights_tell(ex);
    while (ex->n_flights > 0) {
        if (!flights_report(ex, err))
            return false;
        flights_tell(ex);
    }
    return true;
}

void flights_add(struct executor *ex, uint32_t lane, const struct opd_err *err)
{
    const struct steps *steps = &ex->steps;
    struct flight flight = { .seq = steps->seq,
                             .steps = steps->n_begun,
                             .n_reports = steps->n_own,
                             .stamp = ex->stamp,
                             .word = steps->word,
                             .version = steps->version,
                             .lane = lane };
    if (err->code) {
        flight.failure = mem_alloc(sizeof *flight.failure);
        *flight.failure = (struct failure){ *err, steps->miss };
    }
    buf_append(&ex->flights, &flight, sizeof flight);
    ex->n_flights++;
}

void flights_tell_begun(struct executor *ex, struct dev_begun *begun)
{
    struct dev_begun *record;
    while (!(record = ring_reserve(&ex->done, sizeof *record))) {
        ring_alert(&ex->done);
        usleep(100);
    }
    begun->seq = ex->seq + 1;
    begun->at = clock_ns();
    *record = *begun;
    ring_publish(&ex->done);
    if (!atomic_exchange(&ex->lanes.shared->watched, 1))
        ring_alert(&ex->done);
}

void flights_fail(struct executor *ex, const struct opd_err *err)
{
    struct opd_err again = { 0 };
    flights_report(ex, &again);
    opd_err_clear(&again);
    struct failure failure = { .err = *err };
    struct flight first = { .seq = ex->n_flights ? first_flight(ex)->seq : 0,
                            .failure = &failure };
    post_done(ex, &first, true);
    flights_tell(ex);
}

void flights_finish(struct executor *ex)
{
    buf_finish(&ex->flights);
}
