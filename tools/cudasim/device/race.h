// The race checker's hooks into execution (with CUDASIM_RACE; empty in other builds).
//
// Kernels are compiled with -fsanitize=thread and call the __tsan_* functions of race_hooks.cc. For
// each 4 bytes of shared and global memory the last accesses are kept; a new access must be ordered
// after those it conflicts with, by
// - a __syncthreads between them, within a block;
// - a __syncwarp of both lanes, within a warp (shuffles and votes order no memory);
// - a __threadfence and then an atomic on the one side, an atomic on the other, between blocks.
#ifndef CUDASIM_DEVICE_RACE_H_
#define CUDASIM_DEVICE_RACE_H_

#include <cstddef>

namespace cudasim {

class BlockRunner;

#ifdef CUDASIM_RACE
inline constexpr bool kRaceChecker = true;
// Only one grid runs at a time, on one OS thread.
void RaceBeginGrid();
void RaceEndGrid();
void RaceBeginBlock(BlockRunner* runner);
void RaceEndBlock();
void RaceEnterThread(int thread);
void RaceOrderBlock();
// Accesses on behalf of the running thread that its own code does not make.
void RaceNoteRead(const void* p, size_t bytes);
void RaceNoteWrite(const void* p, size_t bytes);
#else
inline constexpr bool kRaceChecker = false;
inline void RaceBeginGrid() {}
inline void RaceEndGrid() {}
inline void RaceBeginBlock(BlockRunner*) {}
inline void RaceEndBlock() {}
inline void RaceEnterThread(int) {}
inline void RaceOrderBlock() {}
inline void RaceNoteRead(const void*, size_t) {}
inline void RaceNoteWrite(const void*, size_t) {}
#endif

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_RACE_H_
