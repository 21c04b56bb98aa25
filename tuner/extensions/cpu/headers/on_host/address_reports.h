// What the address sanitizer found, in the words of a kernel's author.
#pragma once

namespace cuda_on_host {

// Copies FILE and LINE of the first frame that is neither in our headers nor in the sanitizer.
static void find_place(const char* report, char* place, size_t size) {
  snprintf(place, size, "unknown line");
  for (const char* line = report; line; line = strchr(line, '\n')) {
    char path[600];
    unsigned number = 0;
    while (*line == '\n' || *line == ' ') ++line;
    if (*line != '#') {
      if (!*line) return;
      continue;
    }
    const char* end = strchrnul(line, '\n');
    const char* colon = static_cast<const char*>(memchr(line, ':', static_cast<size_t>(end - line)));
    if (!colon || sscanf(colon, ":%u", &number) != 1) continue;
    const char* start = colon;
    while (start > line && start[-1] != ' ') --start;
    snprintf(path, sizeof path, "%.*s", static_cast<int>(colon - start), start);
    if (strstr(path, "on_host") || strstr(path, "sanitizer") || strstr(path, "libasan")) continue;
    const char* slash = strrchr(path, '/');
    snprintf(place, size, "%s(%u)", slash ? slash + 1 : path, number);
    return;
  }
}

static bool near_variable(const unsigned char* address, char* text, size_t size) {
  for (unsigned i = 0; i < variable_count; ++i) {
    const Variable& one = variables[i];
    if (address < one.zone || address >= one.zone + one.zone_bytes) continue;
    const bool before = address < one.value;
    snprintf(text, size, "%zu bytes %s the %zu bytes of the %s",
             static_cast<size_t>(before ? one.value - address : address - one.value - one.bytes),
             before ? "before" : "after", one.bytes, one.name);
    return true;
  }
  const unsigned char* const end = dynamic_shared + active->shared_bytes;
  if (address < end || address >= dynamic_shared + sizeof dynamic_shared) return false;
  snprintf(text, size, "%zu bytes after the %u bytes of dynamic shared memory",
           static_cast<size_t>(address - end), active->shared_bytes);
  return true;
}

// The parameter whose start is nearest: the buffer that was most likely meant.
static bool near_parameter(const char* address, char* text, size_t size) {
  bool guarded = false;
  for (unsigned i = 0; i < active->guard_count; ++i) {
    const Range& guard = active->guards[i];
    guarded |= address >= guard.start && address < guard.start + guard.bytes;
  }
  if (!guarded) return false;
  unsigned nearest = 0;
  unsigned long long least = ~0ull;
  for (unsigned i = 0; i < active->arguments; ++i) {
    if (active->sizes[i] != sizeof(char*)) continue;
    const char* start = *static_cast<char* const*>(active->values[i]);
    if (start <= address && static_cast<unsigned long long>(address - start) < least)
      nearest = i + 1, least = static_cast<unsigned long long>(address - start);
  }
  if (nearest) {
    snprintf(text, size, "%llu bytes from the start of parameter %u, beyond its end", least, nearest);
  } else {
    snprintf(text, size, "before the first buffer");
  }
  return true;
}

static void on_address_error(const char* report) {
  char place[300], where[300];
  find_place(report, place, sizeof place);
  const char* const address = static_cast<const char*>(__asan_get_report_address());
  const char* const kind = __asan_get_report_description();
  const size_t bytes = __asan_get_report_access_size();
  if (!near_variable(reinterpret_cast<const unsigned char*>(address), where, sizeof where) &&
      !near_parameter(address, where, sizeof where))
    snprintf(where, sizeof where, "%s at %p", kind && *kind ? kind : "an illegal address", address);
  char peer[200];
  if (describe_peer(address, peer, sizeof peer)) {
    say("%s: an address %s, by %s", place, peer, thread_name());
  } else if (bytes) {
    say("%s: %s of %zu bytes outside the memory it may use: %s, by %s", place,
        __asan_get_report_access_type() ? "write" : "read", bytes, where, thread_name());
  } else {
    const char* const what = strstr(report, "AddressSanitizer: ");
    int length = what ? static_cast<int>(strcspn(what + 18, "\n(")) : 0;
    while (length && what[17 + length] == ' ') --length;
    say("%s: %.*s, by %s", place, length, what ? what + 18 : "", thread_name());
  }
  give_up(kSanitizer);
}

}  // namespace cuda_on_host
