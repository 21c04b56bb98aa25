// What g++'s -fsanitize=undefined calls, so that a finding is a message and no other library is
// needed. The layouts are those of libubsan's data.
#pragma once

namespace cuda_on_host {

struct Place {
  const char* file;
  unsigned line, column;
};
struct Type {
  unsigned short kind, info;
  char name[1];
};
struct Overflow {
  Place place;
  const Type* type;
};
struct Pair_of_types {
  Place place;
  const Type *left, *right;
};
struct Mismatch {
  Place place;
  const Type* type;
  unsigned char log_alignment, access;
};

// Wide values and floating-point numbers are passed by their address.
static void show(const Type* type, unsigned long value, char* text, size_t size) {
  const unsigned bits = 1u << (type->info >> 1);
  if (type->kind == 1) {
    double number = 0;
    float narrow;
    if (type->info == 32) {
      memcpy(&narrow, &value, sizeof narrow), number = narrow;
    } else if (type->info == 64) {
      memcpy(&number, &value, sizeof number);
    }
    snprintf(text, size, "%g", number);
  } else if (type->kind != 0 || bits > 64) {
    snprintf(text, size, "a value");
  } else if (type->info & 1) {
    snprintf(text, size, "%ld", static_cast<long>(value << (64 - bits)) >> (64 - bits));
  } else {
    snprintf(text, size, "%lu", value);
  }
}

struct Shown {
  char text[48];
  Shown(const Type* type, unsigned long value) { show(type, value, text, sizeof text); }
};

__attribute__((format(printf, 2, 3))) [[noreturn]] static void found(const Place& place,
                                                                     const char* format, ...) {
  char text[400];
  va_list rest;
  va_start(rest, format);
  vsnprintf(text, sizeof text, format, rest);
  va_end(rest);
  const char* const slash = place.file ? strrchr(place.file, '/') : nullptr;
  say("%s(%u): %s, by %s", slash ? slash + 1 : place.file ? place.file : "?", place.line, text,
      thread_name());
  give_up(kSanitizer);
}

static void overflow(const Overflow& data, unsigned long a, const char* operation, unsigned long b) {
  found(data.place, "overflow: %s %s %s does not fit %s", Shown(data.type, a).text, operation,
        Shown(data.type, b).text, data.type->name);
}

}  // namespace cuda_on_host

#define ON_HOST_HANDLER(NAME, ...)                                                \
  extern "C" __attribute__((visibility("hidden"), noreturn)) void __ubsan_handle_##NAME(__VA_ARGS__)
namespace on = cuda_on_host;

ON_HOST_HANDLER(add_overflow_abort, on::Overflow* data, unsigned long a, unsigned long b) {
  on::overflow(*data, a, "+", b);
  __builtin_unreachable();
}
ON_HOST_HANDLER(sub_overflow_abort, on::Overflow* data, unsigned long a, unsigned long b) {
  on::overflow(*data, a, "-", b);
  __builtin_unreachable();
}
ON_HOST_HANDLER(mul_overflow_abort, on::Overflow* data, unsigned long a, unsigned long b) {
  on::overflow(*data, a, "*", b);
  __builtin_unreachable();
}
ON_HOST_HANDLER(negate_overflow_abort, on::Overflow* data, unsigned long a) {
  on::found(data->place, "overflow: -(%s) does not fit %s", on::Shown(data->type, a).text,
            data->type->name);
}
ON_HOST_HANDLER(divrem_overflow_abort, on::Overflow* data, unsigned long a, unsigned long b) {
  on::found(data->place, "division of %s by %s", on::Shown(data->type, a).text,
            on::Shown(data->type, b).text);
}
ON_HOST_HANDLER(shift_out_of_bounds_abort, on::Pair_of_types* data, unsigned long a,
                unsigned long b) {
  on::found(data->place, "a shift of %s, which is %s, by %s", data->left->name,
            on::Shown(data->left, a).text, on::Shown(data->right, b).text);
}
ON_HOST_HANDLER(out_of_bounds_abort, on::Pair_of_types* data, unsigned long index) {
  on::found(data->place, "index %s is outside %s", on::Shown(data->right, index).text,
            data->left->name);
}
ON_HOST_HANDLER(type_mismatch_v1_abort, on::Mismatch* data, unsigned long address) {
  const unsigned long alignment = 1ul << data->log_alignment;
  const char* const verb = data->access == 1 ? "write of" : data->access == 0 ? "read of" : "use of";
  if (!address) on::found(data->place, "%s %s through a null pointer", verb, data->type->name);
  on::found(data->place, "misaligned %s %s: the address %#lx is no multiple of %lu", verb,
            data->type->name, address, alignment);
}
ON_HOST_HANDLER(float_cast_overflow_abort, on::Pair_of_types* data, unsigned long value) {
  on::found(data->place, "conversion of %s to %s, which can't hold it",
            on::Shown(data->left, value).text, data->right->name);
}
ON_HOST_HANDLER(load_invalid_value_abort, on::Overflow* data, unsigned long value) {
  on::found(data->place, "%lu is no value of %s", value, data->type->name);
}
ON_HOST_HANDLER(vla_bound_not_positive_abort, on::Overflow* data, unsigned long) {
  on::found(data->place, "an array without elements");
}
ON_HOST_HANDLER(builtin_unreachable, on::Place* place) {
  on::found(*place, "reached what was declared unreachable");
}
ON_HOST_HANDLER(missing_return, on::Place* place) {
  on::found(*place, "a function that returns a value ends without one");
}
ON_HOST_HANDLER(nonnull_arg_abort, on::Place* place) {
  on::found(*place, "a null pointer is passed where none may be");
}
#undef ON_HOST_HANDLER
