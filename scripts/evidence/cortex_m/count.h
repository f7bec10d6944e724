/* Included after policy.h: every call of the policy is counted. */
void count_begin(void);
void count_end(void);
#define policy(...) (count_begin(), (policy)(__VA_ARGS__), count_end())
