#pragma once

// The commands of a device, of device*.c alone: `pending` ones wait for room in the ring, those in
// `flight` have been sent and not reported done. A command belongs to the queue that it is in, and
// is freed once its callback has run, exactly once. What the executor says out of order or garbled
// ends it (device_kill()).

#include "device/device.h"

// A list and the place for its next one.
void device_push(struct command *c, struct command ***end);
struct command *device_take_all(struct command **first, struct command ***end);

void device_pump(struct device *d); // sends what the ring takes

// Finishes what an executor has reported done. True: it says that its device is beyond use.
bool device_take_done(struct device_link *link);
void device_take_rest(struct device_link *link); // the same, of one that is over, as far as it got
void device_put_back(struct device *d, struct command *first); // in order, before what waits

// Something was in flight until then, a clock_ns().
void device_count_busy(struct device *d, uint64_t until);
// at: clock_ns() when it ended.
void device_count_run(struct device *d, const struct command *c, uint64_t at,
                      const struct opd_err *err);
void device_finish_command(struct device *d, struct command *c, const struct opd_err *err);
void device_free_spare(struct device *d);
// Finishes every command of a queue with an error. The callbacks may submit more: those go to
// `pending` and are not touched here.
void device_fail_all(struct device *d, struct command *first, const struct opd_err *err);
