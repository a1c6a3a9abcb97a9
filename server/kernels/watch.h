#pragma once

// When the kernel folders are looked at: soon after something in them has changed.

struct reload;

void watch_update(struct reload *r);    // watches every folder that sources come from now
void watch_look_soon(struct reload *r); // though nothing may change
