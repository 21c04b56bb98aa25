// As <assert.h> it may be included anew after each change of NDEBUG.
#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) \
  ((condition) ? (void)0 : __on_host_fails_an_assertion())
#endif
