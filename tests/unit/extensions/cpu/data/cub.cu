#include <cub/cub.cuh>

constexpr int kThreads = 96;

// y[0]: sums of 96, of the first 40, of 2 for each; y[3]: the greatest with its place; y[5...]:
// scans, y[8...]: sums of groups of 8 lanes; y[20...]: the 4 greatest of 150 values.
extern "C" __global__ void run(int* y) {
  using Reduce = cub::BlockReduce<int, kThreads>;
  using Pair = cub::KeyValuePair<int, float>;
  using ReducePairs = cub::BlockReduce<Pair, kThreads>;
  using Scan = cub::BlockScan<int, kThreads>;
  using Group = cub::WarpReduce<int, 8>;
  using Sort = cub::BlockRadixSort<int, kThreads, 2, int>;
  __shared__ union {
    Reduce::TempStorage reduce;
    ReducePairs::TempStorage pairs;
    Scan::TempStorage scan;
    Sort::TempStorage sort;
  } shared;
  __shared__ Group::TempStorage groups[kThreads / 8];
  const int me = threadIdx.x;

  const int all = Reduce(shared.reduce).Sum(me);
  __syncthreads();
  const int some = Reduce(shared.reduce).Reduce(me, [](int a, int b) { return a + b; }, 40);
  __syncthreads();
  int two[2] = {me, 1};
  const int both = Reduce(shared.reduce).Sum(two);
  __syncthreads();
  const Pair most = ReducePairs(shared.pairs).Reduce(Pair{me, float(me % 50)}, cub::ArgMax());
  __syncthreads();
  if (me == 0) {
    y[0] = all, y[1] = some, y[2] = both;
    y[3] = most.key, y[4] = int(most.value);
  }

  int inclusive, exclusive, total, pairs[2];
  Scan(shared.scan).InclusiveSum(me, inclusive);
  __syncthreads();
  Scan(shared.scan).ExclusiveSum(me, exclusive, total);
  __syncthreads();
  Scan(shared.scan).ExclusiveSum(two, pairs);
  if (me == 10) y[5] = inclusive, y[6] = exclusive, y[7] = total, y[18] = pairs[0], y[19] = pairs[1];

  const int of_eight = Group(groups[me / 8]).Sum(me);
  if (me % 8 == 0 && me < 80) y[8 + me / 8] = of_eight;

  int keys[2], values[2];
  cub::BlockLoad<int, kThreads, 2>().Load(y + 64, keys, 150, -1);
  for (int i = 0; i < 2; ++i) values[i] = 2 * me + i;
  __syncthreads();
  Sort(shared.sort).SortDescending(keys, values);
  if (me < 2)
    for (int i = 0; i < 2; ++i) y[20 + 2 * me + i] = keys[i], y[24 + 2 * me + i] = values[i];
}
