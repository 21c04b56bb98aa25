#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

// For 64 threads: a block's rank, sums of a tile and of a warp, scans, votes, exchanges.
extern "C" __global__ void run(int* y) {
  cg::thread_block block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  const int me = block.thread_rank();
  int result = cg::reduce(tile, me, cg::plus<int>()) + 1000 * cg::reduce(warp, me, cg::greater<int>());
  y[me] = result;
  const int before = cg::exclusive_scan(tile, 1);
  const bool right = before == static_cast<int>(tile.thread_rank()) &&
                     cg::inclusive_scan(warp, 1) == me % 32 + 1 &&
                     tile.ballot(me % 2) == 0xaau && tile.any(me % 8 == 3) && !tile.all(me % 8 == 3) &&
                     tile.shfl(me, 2) == me / 8 * 8 + 2 && tile.shfl_xor(me, 1) == (me ^ 1) &&
                     tile.meta_group_rank() == static_cast<unsigned>(me / 8) && tile.size() == 8 &&
                     cg::coalesced_threads().size() == 32;
  block.sync();
  if (!right) atomicAdd(y + 64, 1);
}
