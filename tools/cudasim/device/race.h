// The race checker's view of the execution. Nothing unless built with CUDASIM_RACE.
#ifndef CUDASIM_DEVICE_RACE_H_
#define CUDASIM_DEVICE_RACE_H_

#include <cstddef>

namespace cudasim {

#ifdef CUDASIM_RACE
inline constexpr bool kRaceChecker = true;
// Of blocks that run at the same time the checker sees one only: grids run on one OS thread.
void RaceBeginGrid();
void RaceEndGrid();
void RaceBeginBlock(int threads);
void RaceEnterThread(int thread);
// A barrier: everything before it is ordered before everything after it.
void RaceOrderBlock();
void RaceNoteRead(const void* p, size_t bytes);
void RaceNoteWrite(const void* p, size_t bytes);
#else
inline constexpr bool kRaceChecker = false;
inline void RaceBeginGrid() {}
inline void RaceEndGrid() {}
inline void RaceBeginBlock(int) {}
inline void RaceEnterThread(int) {}
inline void RaceOrderBlock() {}
inline void RaceNoteRead(const void*, size_t) {}
inline void RaceNoteWrite(const void*, size_t) {}
inline void RaceOrderLanes(unsigned) {}
#endif

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_RACE_H_
