// Kineto events as text to columns: the part of kineto_decode.py that a large file spends its time in.
//
// Strict where Python is lenient: whatever is not plainly as Kineto writes it makes scan() return -1, and the piece is
// decoded in Python instead. Every read is bounded by `end`; nothing is written to the text.

#include <cctype>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace {

enum Kind : int8_t { KERNEL, MEMCPY, MEMSET, LAUNCH, OP, FRAME, ANNOTATION, DEVICE_ANNOTATION, OTHER };

struct Category { const char *name; Kind kind; };
const Category CATEGORIES[] = {
    {"python_function", FRAME}, {"cpu_op", OP}, {"kernel", KERNEL}, {"cuda_runtime", LAUNCH},
    {"cuda_driver", LAUNCH}, {"gpu_memcpy", MEMCPY}, {"gpu_memset", MEMSET}, {"user_annotation", ANNOTATION},
    {"gpu_user_annotation", DEVICE_ANNOTATION}, {"Kernel", KERNEL}, {"Memcpy", MEMCPY}, {"Memset", MEMSET},
    {"Runtime", LAUNCH}, {"Driver", LAUNCH}, {"Operator", OP},
};

struct Span {
    const char *at = nullptr;
    size_t n = 0;
    bool is(const char *s) const { return at && n == strlen(s) && !memcmp(at, s, n); }
};

bool valid_utf8(const char *s, size_t n) {
    auto *p = reinterpret_cast<const unsigned char *>(s), *end = p + n;
    while (p < end) {
        if (*p < 0x80) { ++p; continue; }
        int more = *p >= 0xf0 ? 3 : *p >= 0xe0 ? 2 : 1;
        if (*p < 0xc2 || *p > 0xf4 || end - p <= more) return false;
        if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) || (*p == 0xf0 && p[1] < 0x90) ||
            (*p == 0xf4 && p[1] > 0x8f)) return false;
        for (int i = 1; i <= more; ++i) if ((p[i] & 0xc0) != 0x80) return false;
        p += more + 1;
    }
    return true;
}

// Strings by id in order of appearance. Raw JSON values and strings with the same bytes are different entries.
class Interner {
  public:
    Interner() : slots_(1 << 12, -1) {}

    // Id of the bytes, -2 if they are no UTF-8.
    int32_t id(const char *s, size_t n, bool raw) {
        uint64_t h = hash(s, n) ^ (raw ? 0x9e3779b97f4a7c15u : 0);
        size_t i = h & (slots_.size() - 1);
        for (; slots_[i] >= 0; i = (i + 1) & (slots_.size() - 1)) {
            const Entry &e = entries_[slots_[i]];
            if (e.hash == h && e.raw == raw && e.text.size() == n && !memcmp(e.text.data(), s, n)) return slots_[i];
        }
        if (!valid_utf8(s, n)) return -2;
        auto number = static_cast<int32_t>(entries_.size());
        entries_.push_back({std::string(s, n), h, raw});
        slots_[i] = number;
        if (entries_.size() * 2 > slots_.size()) grow();
        return number;
    }

    struct Entry { std::string text; uint64_t hash; bool raw; };
    const std::deque<Entry> &entries() const { return entries_; }

  private:
    static uint64_t hash(const char *s, size_t n) {
        uint64_t h = 0x2545f4914f6cdd1du ^ n;
        for (; n >= 8; s += 8, n -= 8) {
            uint64_t w;
            memcpy(&w, s, 8);
            h = (h ^ w) * 0xff51afd7ed558ccdu;
            h ^= h >> 32;
        }
        uint64_t w = 0;
        memcpy(&w, s, n);
        h = (h ^ w) * 0xc4ceb9fe1a85ec53u;
        return h ^ (h >> 29);
    }

    void grow() {
        std::vector<int32_t> bigger(slots_.size() * 2, -1);
        for (size_t e = 0; e < entries_.size(); ++e) {
            size_t i = entries_[e].hash & (bigger.size() - 1);
            while (bigger[i] >= 0) i = (i + 1) & (bigger.size() - 1);
            bigger[i] = static_cast<int32_t>(e);
        }
        slots_.swap(bigger);
    }

    std::deque<Entry> entries_;
    std::vector<int32_t> slots_;
};

struct Args {
    int64_t correlation = -1, device = -1, stream = -1, bytes = -1, graph = -1, node = -1;
    bool has_device = false, has_stream = false;
    Span kernel, grid, block, dims, dtypes, concrete;
};

class Scanner {
  public:
    long scan(const char *text, size_t n) {
        kind.clear(); name.clear(); thread.clear(); start.clear(); dur.clear();
        for (auto *column : {&correlation, &device, &stream, &bytes, &graph, &node}) column->clear();
        for (auto *column : {&kernel, &grid, &block, &dims, &dtypes, &concrete}) column->clear();
        others.clear();
        p_ = text;
        end_ = text + n;
        space();
        while (p_ < end_) {
            if (!event()) return -1;
            space();
            if (p_ == end_) break;
            if (*p_++ != ',') return -1;
            space();
            if (p_ == end_) return -1;
        }
        return static_cast<long>(kind.size());
    }

    Interner interner;
    std::vector<int8_t> kind;
    std::vector<int32_t> name, thread;
    std::vector<int64_t> start, dur;
    // Of every event but Python frames, in order.
    std::vector<int64_t> correlation, device, stream, bytes, graph, node;
    std::vector<int32_t> kernel, grid, block, dims, dtypes, concrete;
    std::vector<int32_t> others;  // phase << 24 | id of the category, of events that no table keeps

  private:
    const char *p_ = nullptr, *end_ = nullptr;
    int64_t last_pid_ = -1, last_tid_ = -1;
    int32_t last_thread_ = -1;

    void space() { while (p_ < end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_; }

    bool take(char c) {
        space();
        if (p_ >= end_ || *p_ != c) return false;
        ++p_;
        return true;
    }

    // Of the next eight bytes, the high bit of those that are a quote, a backslash or a control character. Bits above the
    // lowest one may be wrong.
    static uint64_t special(const char *at) {
        const uint64_t ones = 0x0101010101010101u;
        uint64_t w;
        memcpy(&w, at, 8);
        uint64_t quote = w ^ (ones * '"'), escape = w ^ (ones * '\\');
        return (((quote - ones) & ~quote) | ((escape - ones) & ~escape) | ((w - ones * 0x20) & ~w)) & (ones << 7);
    }

    // The inside of a string; escapes stay as they are.
    bool string(Span &out) {
        if (p_ >= end_ || *p_ != '"') return false;
        const char *from = ++p_;
        while (true) {
            while (end_ - p_ >= 8) {
                uint64_t hit = special(p_);
                if (hit) { p_ += __builtin_ctzll(hit) >> 3; break; }
                p_ += 8;
            }
            if (p_ >= end_ || static_cast<unsigned char>(*p_) < 0x20) return false;
            if (*p_ == '"') break;
            if (*p_ == '\\') {
                // Code points by number may be half of a pair: left to Python.
                if (++p_ >= end_ || !memchr("\"\\/bfnrt", *p_, 8)) return false;
            }
            ++p_;
        }
        out.at = from;
        out.n = static_cast<size_t>(p_++ - from);
        return true;
    }

    bool word(const char *w) {
        size_t n = strlen(w);
        if (static_cast<size_t>(end_ - p_) < n || memcmp(p_, w, n)) return false;
        p_ += n;
        return true;
    }

    // Whether the digits from `digits` to here are a number's whole part: at least one, and no zero before others.
    bool whole(const char *digits) const { return p_ > digits && (*digits != '0' || p_ == digits + 1); }

    bool number() {
        if (p_ < end_ && *p_ == '-') ++p_;
        const char *digits = p_;
        while (p_ < end_ && *p_ >= '0' && *p_ <= '9') ++p_;
        if (!whole(digits)) return false;
        if (p_ < end_ && *p_ == '.') {
            const char *fraction = ++p_;
            while (p_ < end_ && *p_ >= '0' && *p_ <= '9') ++p_;
            if (p_ == fraction) return false;
        }
        if (p_ < end_ && (*p_ == 'e' || *p_ == 'E')) {
            ++p_;
            if (p_ < end_ && (*p_ == '+' || *p_ == '-')) ++p_;
            const char *power = p_;
            while (p_ < end_ && *p_ >= '0' && *p_ <= '9') ++p_;
            if (p_ == power) return false;
        }
        return true;
    }

    bool skip(int depth = 0) {
        space();
        if (p_ >= end_ || depth > 64) return false;
        Span ignored;
        switch (*p_) {
            case '"': return string(ignored);
            case 't': return word("true");
            case 'f': return word("false");
            case 'n': return word("null");
            case '[':
                ++p_;
                if (space(), p_ < end_ && *p_ == ']') { ++p_; return true; }
                do { if (!skip(depth + 1)) return false; } while (take(','));
                return take(']');
            case '{':
                ++p_;
                if (space(), p_ < end_ && *p_ == '}') { ++p_; return true; }
                do {
                    space();
                    if (!string(ignored) || !take(':') || !skip(depth + 1)) return false;
                } while (take(','));
                return take('}');
            default: return number();
        }
    }

    bool raw(Span &out) {
        space();
        out.at = p_;
        if (!skip()) return false;
        out.n = static_cast<size_t>(p_ - out.at);
        return true;
    }

    // A whole number of at most 18 digits, or null for -1.
    bool integer(int64_t &out) {
        space();
        if (p_ < end_ && *p_ == 'n') { out = -1; return word("null"); }
        bool negative = p_ < end_ && *p_ == '-';
        if (negative) ++p_;
        const char *digits = p_;
        int64_t value = 0;
        while (p_ < end_ && *p_ >= '0' && *p_ <= '9' && p_ - digits < 18) value = value * 10 + (*p_++ - '0');
        if (!whole(digits)) return false;
        if (p_ < end_ && ((*p_ >= '0' && *p_ <= '9') || *p_ == '.' || *p_ == 'e' || *p_ == 'E')) return false;
        out = negative ? -value : value;
        return true;
    }

    // Microseconds to nanoseconds, digit by digit; beyond three decimals to the nearest, ties to even.
    bool nanoseconds(int64_t &out) {
        space();
        bool negative = p_ < end_ && *p_ == '-';
        if (negative) ++p_;
        const char *digits = p_;
        int64_t value = 0;
        while (p_ < end_ && *p_ >= '0' && *p_ <= '9' && p_ - digits < 16) value = value * 10 + (*p_++ - '0');
        if (!whole(digits) || (p_ < end_ && *p_ >= '0' && *p_ <= '9')) return false;
        if (value > 9000000000000000) return false;
        int places = 0;
        bool up = false, half = false, rest = false;
        if (p_ < end_ && *p_ == '.') {
            const char *fraction = ++p_;
            for (; p_ < end_ && *p_ >= '0' && *p_ <= '9'; ++p_) {
                if (places < 3) { value = value * 10 + (*p_ - '0'); ++places; }
                else if (p_ - fraction == 3) { up = *p_ > '5'; half = *p_ == '5'; }
                else if (*p_ != '0') rest = true;
            }
            if (p_ == fraction) return false;
        }
        if (p_ < end_ && (*p_ == 'e' || *p_ == 'E')) return false;
        for (; places < 3; ++places) value *= 10;
        if (up || (half && (rest || (value & 1)))) ++value;
        out = negative ? -value : value;
        return true;
    }

    // Whether a value other than null follows.
    bool given(bool &out) {
        space();
        out = p_ < end_ && *p_ != 'n';
        return true;
    }

    bool args(Args &out) {
        out = Args();
        if (!take('{')) return false;
        if (space(), p_ < end_ && *p_ == '}') { ++p_; return true; }
        do {
            space();
            Span key;
            if (!string(key) || !take(':')) return false;
            bool good;
            if (key.is("correlation")) good = integer(out.correlation);
            else if (key.is("device")) good = given(out.has_device) && integer(out.device);
            else if (key.is("stream")) good = given(out.has_stream) && integer(out.stream);
            else if (key.is("bytes")) good = integer(out.bytes);
            else if (key.is("graph id")) good = integer(out.graph);
            else if (key.is("graph node id")) good = integer(out.node);
            else if (key.is("kernel")) space(), good = string(out.kernel);
            else if (key.is("grid")) good = raw(out.grid);
            else if (key.is("block")) good = raw(out.block);
            else if (key.is("Input Dims") || key.is("Input dims")) good = raw(out.dims);
            else if (key.is("Input type")) good = raw(out.dtypes);
            else if (key.is("Concrete Inputs")) good = raw(out.concrete);
            else good = skip();
            if (!good) return false;
        } while (take(','));
        return take('}');
    }

    // A string of an event without the addresses in it: they make every call distinct.
    int32_t name_id(const Span &s) {
        const char *found = s.n > 7 ? static_cast<const char *>(memmem(s.at, s.n, " at 0x", 6)) : nullptr;
        if (!found) return interner.id(s.at, s.n, false);
        std::string plain;
        const char *from = s.at, *end = s.at + s.n;
        while (found) {
            const char *after = found + 6;
            while (after < end && isxdigit(static_cast<unsigned char>(*after))) ++after;
            if (after == found + 6) plain.append(from, after);
            else plain.append(from, found);
            from = after;
            found = static_cast<const char *>(memmem(from, static_cast<size_t>(end - from), " at 0x", 6));
        }
        plain.append(from, end);
        return interner.id(plain.data(), plain.size(), false);
    }

    bool put(std::vector<int32_t> &column, const Span &value, bool is_raw) {
        int32_t number = value.at ? interner.id(value.at, value.n, is_raw) : -1;
        column.push_back(number);
        return number != -2;
    }

    bool event() {
        if (!take('{')) return false;
        Span ph, cat, title;
        int64_t pid = 0, tid = 0, ts = 0, length = 0;
        bool text_ids = false;
        Args found;
        do {
            space();
            Span key;
            if (!string(key) || !take(':')) return false;
            space();
            if (key.is("ph")) { if (!string(ph)) return false; }
            else if (key.is("cat")) { if (!string(cat)) return false; }
            else if (key.is("name")) { if (!string(title)) return false; }
            else if (key.is("pid") || key.is("tid")) {
                int64_t &to = key.at[0] == 'p' ? pid : tid;
                if (p_ < end_ && *p_ == '"') { Span s; text_ids = true; if (!string(s)) return false; }
                else if (p_ < end_ && *p_ == 'n') return false;
                else if (!integer(to)) return false;
            }
            else if (key.is("ts")) { if (!nanoseconds(ts)) return false; }
            else if (key.is("dur")) { if (!nanoseconds(length)) return false; }
            else if (key.is("args") && p_ < end_ && *p_ == '{') {
                Kind known = kind_of(cat);
                if (cat.at && (known == FRAME || known == OTHER)) { if (!skip()) return false; }
                else if (!args(found)) return false;
            }
            else if (!skip()) return false;
        } while (take(','));
        if (!take('}') || ph.n != 1) return false;
        char phase = ph.at[0];
        if (phase == 'B' || phase == 'E' || phase == 'M') return false;
        if (phase < ' ' || static_cast<unsigned char>(phase) > '~') return false;
        Kind what = phase == 'X' ? kind_of(cat) : OTHER;
        if (what == OTHER) {
            int32_t number = interner.id(cat.at ? cat.at : "", cat.n, false);
            if (number < 0 || number >= 1 << 24) return false;
            others.push_back(static_cast<int32_t>(phase) << 24 | number);
            return true;
        }
        if (text_ids) return false;
        int32_t number = title.at ? name_id(title) : interner.id("", 0, false);
        if (number < 0) return false;
        if (pid != last_pid_ || tid != last_tid_ || last_thread_ < 0) {
            std::string both = std::to_string(pid) + "/" + std::to_string(tid);
            last_thread_ = interner.id(both.data(), both.size(), false);
            last_pid_ = pid;
            last_tid_ = tid;
        }
        kind.push_back(what);
        name.push_back(number);
        thread.push_back(last_thread_);
        start.push_back(ts);
        dur.push_back(length);
        if (what == FRAME) return true;
        correlation.push_back(found.correlation);
        device.push_back(found.has_device ? found.device : pid);
        stream.push_back(found.has_stream ? found.stream : tid);
        bytes.push_back(found.bytes);
        graph.push_back(found.graph);
        node.push_back(found.node);
        return put(kernel, found.kernel, false) && put(grid, found.grid, true) && put(block, found.block, true) &&
               put(dims, found.dims, true) && put(dtypes, found.dtypes, true) && put(concrete, found.concrete, true);
    }

    static Kind kind_of(const Span &cat) {
        if (!cat.at) return OTHER;
        for (const Category &c : CATEGORIES)
            if (cat.n == strlen(c.name) && !memcmp(cat.at, c.name, cat.n)) return c.kind;
        return OTHER;
    }
};

template <typename T> const void *data_of(const std::vector<T> &column, size_t *n) {
    *n = column.size();
    return column.data();
}

}  // namespace

extern "C" {

void *atrex_kineto_new() { return new Scanner; }

void atrex_kineto_free(void *scanner) { delete static_cast<Scanner *>(scanner); }

// Events kept from `n` bytes of events between commas, or -1 where they are not plainly as Kineto writes them.
long atrex_kineto_scan(void *scanner, const char *text, size_t n) { return static_cast<Scanner *>(scanner)->scan(text, n); }

// A column of the last scan and its length; the order is that of COLUMNS in kineto_native.py.
const void *atrex_kineto_column(void *scanner, int which, size_t *n) {
    auto &s = *static_cast<Scanner *>(scanner);
    switch (which) {
        case 0: return data_of(s.kind, n);
        case 1: return data_of(s.name, n);
        case 2: return data_of(s.thread, n);
        case 3: return data_of(s.start, n);
        case 4: return data_of(s.dur, n);
        case 5: return data_of(s.correlation, n);
        case 6: return data_of(s.device, n);
        case 7: return data_of(s.stream, n);
        case 8: return data_of(s.bytes, n);
        case 9: return data_of(s.graph, n);
        case 10: return data_of(s.node, n);
        case 11: return data_of(s.kernel, n);
        case 12: return data_of(s.grid, n);
        case 13: return data_of(s.block, n);
        case 14: return data_of(s.dims, n);
        case 15: return data_of(s.dtypes, n);
        case 16: return data_of(s.concrete, n);
        case 17: return data_of(s.others, n);
        default: *n = 0; return nullptr;
    }
}

size_t atrex_kineto_strings(void *scanner) { return static_cast<Scanner *>(scanner)->interner.entries().size(); }

const char *atrex_kineto_string(void *scanner, size_t number, size_t *n, int *is_raw) {
    const auto &entry = static_cast<Scanner *>(scanner)->interner.entries()[number];
    *n = entry.text.size();
    *is_raw = entry.raw;
    return entry.text.data();
}
}
