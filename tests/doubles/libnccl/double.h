/* What stands for CUDA beside the double of NCCL: streams, graphs, and the lock of the checkpoint interface. All simulated. */
#ifndef NCCL_DOUBLE_DOUBLE_H
#define NCCL_DOUBLE_DOUBLE_H

#include "nccl.h"

struct double_graph;

/* A NULL stream is the process's default one. */
cudaStream_t double_stream_create(void);
/* Waits until everything on it is done. */
void double_stream_synchronize(cudaStream_t stream);

/* What is enqueued between the two goes into a graph instead. A launch enqueues it, and calls nothing of NCCL. */
void double_capture_begin(cudaStream_t stream);
struct double_graph *double_capture_end(cudaStream_t stream);
void double_graph_launch(struct double_graph *graph, cudaStream_t stream);

/* As cuCheckpointProcessLock: from now on, calls that enqueue wait; then until everything enqueued is done. Returns 0, or 600
 * (CUDA_ERROR_NOT_READY) after so many milliseconds; nothing is locked then. */
int double_lock(int timeout_ms);
void double_unlock(void);

#endif
