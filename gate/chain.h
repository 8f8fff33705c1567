/* The profiler plugin that the user has set: it gets what NCCL would have given it. */
#ifndef SLURMCKPT_GATE_CHAIN_H
#define SLURMCKPT_GATE_CHAIN_H

#include "nccl.h"

/* The value of NCCL_PROFILER_PLUGIN before ours took its place; unset: the user had set none. */
#define CHAIN_VARIABLE "SLURM_CKPT_GATE_NEXT"

enum chain_result { CHAIN_NONE, CHAIN_LOADED, CHAIN_LOST };

/* Loads it and finds its interface, newest version first and none above newest. own: ours, which is not chained to itself. */
enum chain_result chain_load(unsigned newest, const struct nccl_profiler *own, const struct nccl_profiler **next, unsigned *version);

/* The events that a plugin of this version gets, which has asked for those of mask: without those that it does not know, and with those
 * that others need. */
unsigned chain_mask(int mask, unsigned version);

/* Whether NCCL starts an event of this type for a plugin that has asked for the events of mask. */
bool chain_wants(unsigned mask, uint64_t type);

#endif
