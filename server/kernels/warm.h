#pragma once

// Compiles before anyone asks: every kernel of every operator's examples, in every dtype, on every
// device.

struct broker;

void warm_start(struct broker *b); // the compiles go on in the background
