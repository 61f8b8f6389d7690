// Barriers, votes and shuffles. A lane of a warp posts its value; the last lane to arrive answers all of them.
#pragma once

#define __syncthreads() emul::block_barrier(__LINE__)
#define __activemask() emul::active_mask(__LINE__)

namespace emul {

struct Shuffled {
  uint64_t in, out;
  int source;
};
inline void shuffle_lanes(void** lanes, unsigned mask) {
  for (int i = 0; i < 32; ++i) {
    if (!lanes[i]) continue;
    Shuffled& s = *(Shuffled*)lanes[i];
    // What an absent lane would give is undefined: NaN.
    s.out = mask >> (s.source & 31) & 1 ? ((Shuffled*)lanes[s.source & 31])->in : ~0ull;
  }
}
template <class T>
inline T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  Shuffled s{0, 0, source};
  memcpy(&s.in, &value, sizeof value);
  collective(mask, SHUFFLE, &s, shuffle_lanes);
  T out;
  memcpy(&out, &s.out, sizeof out);
  return out;
}

struct Vote {
  int predicate;
  unsigned ballot, mask;
};
inline void count_votes(void** lanes, unsigned mask) {
  unsigned ballot = 0;
  for (int i = 0; i < 32; ++i)
    if (lanes[i] && ((Vote*)lanes[i])->predicate) ballot |= 1u << i;
  for (int i = 0; i < 32; ++i)
    if (lanes[i]) ((Vote*)lanes[i])->ballot = ballot, ((Vote*)lanes[i])->mask = mask;
}
inline Vote vote(unsigned mask, int predicate) {
  Vote v{predicate, 0, 0};
  collective(mask, VOTE, &v, count_votes);
  return v;
}

}  // namespace emul

static inline void __syncwarp(unsigned mask = 0xffffffffu) { emul::collective(mask, emul::SYNC_WARP, &mask, nullptr); }
static inline unsigned __ballot_sync(unsigned mask, int p) { return emul::vote(mask, p).ballot; }
static inline int __any_sync(unsigned mask, int p) { return emul::vote(mask, p).ballot != 0; }
static inline int __all_sync(unsigned mask, int p) { emul::Vote v = emul::vote(mask, p); return v.ballot == v.mask; }

template <class T>
static inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32) {
  int own = (int)emul::lane_index();
  return emul::shuffle(mask, v, own / width * width + (lane & (width - 1)));
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
  int own = (int)emul::lane_index(), source = own + (int)delta;
  return emul::shuffle(mask, v, source / width == own / width ? source : own);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
  int own = (int)emul::lane_index(), source = own - (int)delta;
  return emul::shuffle(mask, v, source >= own / width * width ? source : own);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32) {
  int own = (int)emul::lane_index(), source = own ^ lanes;
  return emul::shuffle(mask, v, source / width <= own / width ? source : own);
}
// Before sm_70 a warp runs in step: the active lanes take part.
#define __shfl(v, lane, width) __shfl_sync(__activemask(), v, lane, width)
#define __shfl_down(v, delta, width) __shfl_down_sync(__activemask(), v, delta, width)
#define __shfl_up(v, delta, width) __shfl_up_sync(__activemask(), v, delta, width)
#define __shfl_xor(v, lanes, width) __shfl_xor_sync(__activemask(), v, lanes, width)
