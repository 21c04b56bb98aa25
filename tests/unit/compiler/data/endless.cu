template <class A, class B> struct Pair {};
template <class T, int n> struct Grow {
    static constexpr int value =
        Grow<Pair<T, int>, n - 1>::value + Grow<Pair<int, T>, n - 1>::value;
};
template <class T> struct Grow<T, 0> { static constexpr int value = 1; };
extern "C" __global__ void copy(float* to, const float*) { *to = Grow<int, 60>::value; }
