// What the runtime launches kernels by. It is appended to the preprocessed source, with a name that is
// drawn for each compile in place of `harness`, and uses no name of others: whatever a source defines
// or specializes, it is not called in the place of this.
namespace harness {

template <class T>
struct Value {
  using type = T;
};
template <class T>
struct Value<T&> {
  using type = T;
};
template <class T>
struct Value<T&&> {
  using type = T;
};

template <unsigned... I>
struct Places {};
template <unsigned N, unsigned... I>
struct Upto : Upto<N - 1, N - 1, I...> {};
template <unsigned... I>
struct Upto<0, I...> {
  using type = Places<I...>;
};

// As in on_host/launch.h.
struct Kernel {
  void (*function)();
  void (*thread)(void (*function)(), void* const* values);
  const unsigned* sizes;
  unsigned count;
};

template <class... Types>
struct Call {
  static constexpr unsigned sizes[sizeof...(Types) + 1] = {sizeof(Types)..., 0};

  template <unsigned... I>
  static void with(void (*function)(), void* const* values, Places<I...>) {
    reinterpret_cast<void (*)(Types...)>(function)(*static_cast<typename Value<Types>::type*>(values[I])...);
  }
  static void thread(void (*function)(), void* const* values) {
    with(function, values, typename Upto<sizeof...(Types)>::type());
  }
};

template <class... Types>
Kernel kernel(void (*function)(Types...)) {
  return {reinterpret_cast<void (*)()>(function), Call<Types...>::thread, Call<Types...>::sizes, sizeof...(Types)};
}

}  // namespace harness
