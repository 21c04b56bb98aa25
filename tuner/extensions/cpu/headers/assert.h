// As <assert.h> it may be included anew after each change of NDEBUG.
#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) \
  ((condition) ? (void)0 : cuda_on_host::trap("fails an assertion", __builtin_LINE()))
#endif
