/*
 * meta/meta_lmdb_check.c: reads an index through before LMDB does. LMDB believes what it finds: a rotten page can make it read
 * past the end of its map, follow a null pointer, or overwrite a page that is in use. What has passed this check cannot.
 *
 * Checked, for the newer of the two heads: every page of both trees is what its parent says, once; every node lies inside its
 * page; keys rise and stay between their parents' keys, so that a search finds each; every record's sum; as many records as
 * counted; every free page is free, once. Not to be seen: a flip in a head's transaction number, which brings back the state
 * before the last commit; rot after the check.
 *
 * The format is LMDB 0.9's on 64-bit machines, in the machine's byte order; its names are in parentheses below.
 */
#include "meta/meta_lmdb.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"

#define DEPTH_MAX   32 /* (CURSOR_STACK) */
#define PAGE_HEAD   16
#define NODE_HEAD   8
#define HEAD_BYTES  152
#define HEAD_MAGIC  0xBEEFC0DEu
#define NO_PAGE	    UINT64_MAX /* (P_INVALID): the root of an empty tree */
#define INTEGER_KEY 0x08       /* (MDB_INTEGERKEY) */

enum page_kind { PAGE_BRANCH = 1, PAGE_LEAF = 2, PAGE_OVERFLOW = 4 }; /* (P_BRANCH, ...) */
#define NODE_BIG 1 /* (F_BIGDATA): the data lie on pages of their own */

struct tree { /* (MDB_db) */
	uint64_t depth, n_records, root;
	bool is_free_list;
};

struct level {
	uint8_t *page;
	unsigned n, next;      /* nodes, and the next to look at */
	struct view low, high; /* keys at and below are at or past low, before high; NULL: no bound */
};

struct check {
	int fd;
	uint64_t page_bytes, last_page;
	uint8_t *seen;	/* a bit for each page */
	uint8_t *pages; /* DEPTH_MAX of them */
	struct level levels[DEPTH_MAX];
	size_t n_levels;
	uint8_t last_key[512]; /* of the tree at hand */
	size_t last_key_len;
	struct buf big; /* data of pages of their own */
	int read_error; /* a negative errno: not damage, but unreadable */
};

static void check_fini(struct check *c)
{
	if (c->fd >= 0)
		close(c->fd);
	free(c->seen);
	free(c->pages);
	buf_fini(&c->big);
}

static uint16_t u16_at(const uint8_t *p, size_t at)
{
	uint16_t v;

	memcpy(&v, p + at, sizeof(v));
	return v;
}

static uint32_t u32_at(const uint8_t *p, size_t at)
{
	uint32_t v;

	memcpy(&v, p + at, sizeof(v));
	return v;
}

static uint64_t u64_at(const uint8_t *p, size_t at)
{
	uint64_t v;

	memcpy(&v, p + at, sizeof(v));
	return v;
}

/* All of the following return whether what they looked at is sound. */

static bool read_at(struct check *c, uint64_t offset, void *to, size_t len)
{
	uint8_t *at = to;

	while (len) {
		ssize_t n = pread(c->fd, at, len, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			c->read_error = -errno;
		if (n <= 0) /* 0: the file ends too early */
			return false;
		at += n;
		offset += (uint64_t)n;
		len -= (size_t)n;
	}
	return true;
}

/* Notes that @n pages from @page on have their place now. Unsound if one had one already, or is no page. */
static bool see(struct check *c, uint64_t page, uint64_t n)
{
	if (page < 2 || page > c->last_page || n > c->last_page - page + 1)
		return false;
	for (uint64_t i = page; i < page + n; i++) {
		if (c->seen[i / 8] & 1 << i % 8)
			return false;
		c->seen[i / 8] |= (uint8_t)(1 << i % 8);
	}
	return true;
}

/* ---- the heads ---- */

struct head { /* (MDB_meta, behind its page's head) */
	uint64_t page_bytes, last_page, transaction;
	struct tree trees[2];
};

static struct tree tree_at(const uint8_t *p, size_t at, bool is_free_list)
{
	return (struct tree){
		.depth = u16_at(p, at + 6),
		.n_records = u64_at(p, at + 32),
		.root = u64_at(p, at + 40),
		.is_free_list = is_free_list,
	};
}

static bool head_read(struct check *c, uint64_t offset, struct head *ret)
{
	uint8_t p[HEAD_BYTES];
	uint64_t bytes;

	if (!read_at(c, offset, p, sizeof(p)) || u32_at(p, 16) != HEAD_MAGIC)
		return false;
	*ret = (struct head){
		.page_bytes = u32_at(p, 40),
		.last_page = u64_at(p, 136),
		.transaction = u64_at(p, 144),
		.trees = { tree_at(p, 40, true), tree_at(p, 88, false) },
	};
	if (ret->page_bytes < 512 || ret->page_bytes > 65536 || (ret->page_bytes & (ret->page_bytes - 1)))
		return false;
	if (ret->last_page < 1 || mul_overflows(ret->last_page, ret->page_bytes, &bytes) ||
	    bytes >= META_LMDB_MAP_BYTES)
		return false;
	return u16_at(p, 40 + 4) == INTEGER_KEY && u16_at(p, 88 + 4) == 0; /* the trees' kinds */
}

static bool heads_read(struct check *c, struct head *ret)
{
	struct head first, second;

	if (!head_read(c, 0, &first) || !head_read(c, first.page_bytes, &second) ||
	    first.page_bytes != second.page_bytes)
		return false;
	*ret = first.transaction < second.transaction ? second : first;
	return true;
}

/* ---- pages and nodes ---- */

static const uint8_t *node_at(const struct level *level, unsigned i)
{
	return level->page + u16_at(level->page, PAGE_HEAD + 2 * (size_t)i);
}

static struct view node_key(const uint8_t *node)
{
	return view_of(node + NODE_HEAD, u16_at(node, 6));
}

static uint64_t node_child(const uint8_t *node)
{
	return u16_at(node, 0) | (uint64_t)u16_at(node, 2) << 16 | (uint64_t)u16_at(node, 4) << 32;
}

static uint32_t node_data_bytes(const uint8_t *node)
{
	return u16_at(node, 0) | (uint32_t)u16_at(node, 2) << 16;
}

/* Does every node of the page lie inside, with its key and what of its data is there? */
static bool nodes_are_inside(const struct check *c, const struct level *level, enum page_kind kind, unsigned upper)
{
	for (unsigned i = 0; i < level->n; i++) {
		size_t at = u16_at(level->page, PAGE_HEAD + 2 * (size_t)i);

		if (at < upper || at + NODE_HEAD > c->page_bytes)
			return false;
		const uint8_t *node = level->page + at;
		size_t end = at + NODE_HEAD + node_key(node).len;
		if (kind == PAGE_LEAF &&
		    u16_at(node, 4) > NODE_BIG) /* nodes of other kinds of trees, which we have not */
			return false;
		if (kind == PAGE_LEAF)
			end += u16_at(node, 4) == NODE_BIG ? sizeof(uint64_t) : node_data_bytes(node);
		if (end > c->page_bytes)
			return false;
	}
	return true;
}

/* Reads page @number into the next level. */
static bool enter(struct check *c, const struct tree *tree, uint64_t number, struct view low, struct view high)
{
	enum page_kind kind = c->n_levels + 1 == tree->depth ? PAGE_LEAF : PAGE_BRANCH;

	if (c->n_levels == tree->depth || !see(c, number, 1))
		return false;
	uint8_t *page = c->pages + c->n_levels * c->page_bytes;
	if (!read_at(c, number * c->page_bytes, page, c->page_bytes))
		return false;
	unsigned lower = u16_at(page, 12), upper = u16_at(page, 14);
	if (u64_at(page, 0) != number || u16_at(page, 10) != kind || lower < PAGE_HEAD || lower > upper ||
	    upper > c->page_bytes || lower % 2)
		return false;

	struct level *level = &c->levels[c->n_levels++];
	*level = (struct level){ .page = page, .n = (lower - PAGE_HEAD) / 2, .low = low, .high = high };
	if (level->n < (kind == PAGE_BRANCH ? 2 : 1))
		return false;
	return nodes_are_inside(c, level, kind, upper);
}

/* ---- keys ---- */

static int key_compare(const struct tree *tree, struct view a, struct view b)
{
	if (!tree->is_free_list)
		return view_compare(a, b);
	uint64_t x = u64_at(a.ptr, 0), y = u64_at(b.ptr, 0); /* transaction numbers; the length is checked before */
	return (x > y) - (x < y);
}

static bool key_is_sane(const struct tree *tree, struct view key)
{
	return tree->is_free_list ? key.len == sizeof(uint64_t) : key.len >= 1 && key.len <= META_KEY_MAX;
}

static bool key_is_in_place(const struct check *c, const struct tree *tree, const struct level *level, struct view key)
{
	return key_is_sane(tree, key) && (!level->low.ptr || key_compare(tree, key, level->low) >= 0) &&
	       (!level->high.ptr || key_compare(tree, key, level->high) < 0);
}

static bool key_rises(struct check *c, const struct tree *tree, struct view key)
{
	if (c->last_key_len && key_compare(tree, key, view_of(c->last_key, c->last_key_len)) <= 0)
		return false;
	memcpy(c->last_key, key.ptr, key.len);
	c->last_key_len = key.len;
	return true;
}

/* ---- records ---- */

/* The data of a node that lie on pages of their own, into c->big. A value that shrank keeps the pages that it had. */
static bool read_big(struct check *c, const uint8_t *node, size_t len)
{
	uint64_t number = u64_at(node, NODE_HEAD + node_key(node).len);
	uint8_t head[PAGE_HEAD];

	if (number > c->last_page || !read_at(c, number * c->page_bytes, head, sizeof(head)))
		return false;
	uint64_t n = u32_at(head, 12);
	if (u64_at(head, 0) != number || u16_at(head, 10) != PAGE_OVERFLOW || n * c->page_bytes < PAGE_HEAD + len ||
	    !see(c, number, n))
		return false;
	c->big.len = 0;
	if (buf_append_zero(&c->big, len)) {
		c->read_error = -ENOMEM;
		return false;
	}
	return read_at(c, number * c->page_bytes + PAGE_HEAD, c->big.ptr, len);
}

/* A list of free pages: a count, then so many page numbers, falling. */
static bool free_pages_are_sane(struct check *c, struct view data)
{
	uint64_t n = data.len >= sizeof(n) ? u64_at(data.ptr, 0) : UINT64_MAX, last = UINT64_MAX;

	if (data.len % sizeof(n) || n >= data.len / sizeof(n))
		return false;
	for (uint64_t i = 1; i <= n; i++) {
		uint64_t page = u64_at(data.ptr, i * sizeof(n));

		if (page >= last || !see(c, page, 1))
			return false;
		last = page;
	}
	return true;
}

static bool record_is_sane(struct check *c, const struct tree *tree, const uint8_t *node)
{
	struct view key = node_key(node), value, data = view_of(key.ptr + key.len, node_data_bytes(node));
	size_t most = tree->is_free_list ? (c->last_page + 1) * sizeof(uint64_t) : LMDB_RECORD_HEAD + META_VALUE_MAX;

	if (!key_rises(c, tree, key) || data.len > most)
		return false;
	if (u16_at(node, 4) == NODE_BIG) {
		if (!read_big(c, node, data.len))
			return false;
		data = view_buf(&c->big);
	}
	return tree->is_free_list ? free_pages_are_sane(c, data) : lmdb_record_value(key, data, &value) == 0;
}

/* ---- trees ---- */

static bool leaf_is_sane(struct check *c, const struct tree *tree, struct level *leaf, uint64_t *n_records)
{
	for (; leaf->next < leaf->n; leaf->next++, ++*n_records) {
		const uint8_t *node = node_at(leaf, leaf->next);

		if (!key_is_in_place(c, tree, leaf, node_key(node)) || !record_is_sane(c, tree, node))
			return false;
	}
	return true;
}

/* Enters the branch's next child. Its first node's key is not used: that child begins where the branch does. */
static bool branch_descend(struct check *c, const struct tree *tree, struct level *branch)
{
	unsigned i = branch->next++;
	const uint8_t *node = node_at(branch, i);
	struct view low = branch->low, high = branch->high;

	if (i > 0) {
		low = node_key(node);
		if (!key_is_in_place(c, tree, branch, low))
			return false;
	}
	if (i + 1 < branch->n) {
		high = node_key(node_at(branch, i + 1));
		if (!key_is_in_place(c, tree, branch, high))
			return false;
	}
	return enter(c, tree, node_child(node), low, high);
}

static bool tree_is_sane(struct check *c, const struct tree *tree)
{
	uint64_t n_records = 0;

	if (tree->root == NO_PAGE)
		return !tree->depth && !tree->n_records;
	c->n_levels = 0;
	c->last_key_len = 0;
	if (!tree->depth || tree->depth > DEPTH_MAX ||
	    !enter(c, tree, tree->root, (struct view){ 0 }, (struct view){ 0 }))
		return false;
	while (c->n_levels) {
		struct level *level = &c->levels[c->n_levels - 1];
		bool sane = true;

		if (level->next == level->n)
			c->n_levels--;
		else if (c->n_levels == tree->depth)
			sane = leaf_is_sane(c, tree, level, &n_records);
		else
			sane = branch_descend(c, tree, level);
		if (!sane)
			return false;
	}
	return n_records == tree->n_records;
}

/* ---- the file ---- */

static bool file_is_sane(struct check *c, const char **ret_where)
{
	struct head head;

	*ret_where = "its head";
	if (!heads_read(c, &head))
		return false;
	c->page_bytes = head.page_bytes;
	c->last_page = head.last_page;
	c->seen = calloc(1, head.last_page / 8 + 1);
	c->pages = malloc(DEPTH_MAX * head.page_bytes);
	if (!c->seen || !c->pages) {
		c->read_error = -ENOMEM;
		return false;
	}
	*ret_where = "its records";
	if (!tree_is_sane(c, &head.trees[1]))
		return false;
	*ret_where = "its list of free pages";
	return tree_is_sane(c, &head.trees[0]);
}

int lmdb_check(struct lmdb *l, struct error *e)
{
	_cleanup_(cleanup_mem) char *path = NULL;
	_cleanup_(check_fini) struct check c = { .fd = -1 };
	const char *where;
	struct stat st;

	if (asprintf(&path, "%s/data.mdb", l->path) < 0) {
		path = NULL;
		return error_set(e, -ENOMEM, "the index in %s: no memory", l->path);
	}
	c.fd = open(path, O_RDONLY | O_CLOEXEC);
	if (c.fd < 0 && errno == ENOENT)
		return 0;
	if (c.fd < 0 || fstat(c.fd, &st))
		return error_set(e, -errno, "the index in %s: data.mdb: %s", l->path, error_meaning(-errno));
	if (!st.st_size || file_is_sane(&c, &where)) /* empty: LMDB's own beginning, before its first write */
		return 0;
	if (c.read_error)
		return error_set(e, c.read_error, "the index in %s: reading %s: %s", l->path, where,
				 error_meaning(c.read_error));
	return error_set(e, -ERR_EDAMAGED, "the index in %s is damaged in %s (data.mdb)", l->path, where);
}
