#pragma once

// When the kernel folders are looked at: soon after something in them has changed.

struct broker;

void watch_update(struct broker *b);    // watches every folder that sources come from now
void watch_look_soon(struct broker *b); // though nothing may change
