package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// ErrEnvironment means that the store belongs to another environment than this process.
var ErrEnvironment = errors.New("the store belongs to another environment")

// metaEnvironment is the field of sluice:meta with the environment that the store belongs to.
const metaEnvironment = "environment"

// admit checks that the store belongs to the environment of this process, and marks a store that
// belongs to none. It logs what the file changes for other processes.
func (k *Keeper) admit(ctx context.Context, file *File) error {
	found, live, stored, err := k.preflight(ctx, file)
	if err != nil {
		return err
	}
	if stored != k.Environment { // it has no mark
		if stored, err = k.mark(ctx); err != nil {
			return err
		}
		if err := k.foreign(stored); err != nil {
			return err
		}
	}
	if live > 0 {
		k.logTakeover(found, file, live)
	}
	return nil
}

// Preflight returns why Start would refuse the file: ErrEnvironment. Otherwise it returns the
// settings of the file that the API has set to other values. It writes nothing.
func (k *Keeper) Preflight(ctx context.Context, file *File) ([]Outranked, error) {
	if _, _, _, err := k.preflight(ctx, file); err != nil {
		return nil, err
	}
	named, _, err := k.outranked(ctx, newSet(file, 0, k.store.Keyspace))
	return named, err
}

// preflight returns the policies in force, the number of live processes if they have another file,
// and the mark of the store, empty for none. A store without a mark that such processes use cannot
// be marked: they would be of another environment, too.
func (k *Keeper) preflight(ctx context.Context, file *File) (found record, live int, stored string, err error) {
	if found, err = readRecord(ctx, k.store.Patient); err != nil {
		return found, 0, "", err
	}
	files, err := k.liveFiles(ctx)
	if err != nil {
		return found, 0, "", err
	}
	if found.Revision != 0 && found.Digest != file.digest {
		live = len(files)
	}
	stored, err = k.store.Patient.HGet(ctx, store.MetaKey, metaEnvironment).Result()
	switch {
	case err != nil && !errors.Is(err, redis.Nil):
		return found, 0, "", store.Unavailable(err)
	case stored == "" && k.Environment != "" && live > 0:
		return found, live, "", fmt.Errorf("%w: %d running processes use it without store.environment, with other policies. "+
			"If they are of the environment %s, start with their tenants, tiers, pools and defaults first, which marks the "+
			"store, and change those afterwards; if not, correct redis.url", ErrEnvironment, live, k.Environment)
	case stored == "":
		return found, live, "", nil
	}
	return found, live, stored, k.foreign(stored)
}

// foreign returns ErrEnvironment unless a store with this mark belongs to the environment of this
// process.
func (k *Keeper) foreign(stored string) error {
	if stored != k.Environment {
		return fmt.Errorf("%w: it is of %s, this process of %s. Correct redis.url or store.environment. To rename the "+
			"environment of the store, stop its processes and run redis-cli HSET %s %s NAME", ErrEnvironment,
			cmp.Or(stored, "none"), cmp.Or(k.Environment, "none (store.environment is not set)"), store.MetaKey, metaEnvironment)
	}
	return nil
}

// mark writes the environment of this process to a store without one, and returns that of the
// store.
func (k *Keeper) mark(ctx context.Context) (string, error) {
	if err := k.store.Patient.HSetNX(ctx, store.MetaKey, metaEnvironment, k.Environment).Err(); err != nil {
		return "", store.Unavailable(err)
	}
	stored, err := k.store.Patient.HGet(ctx, store.MetaKey, metaEnvironment).Result()
	return stored, store.Unavailable(err)
}

// liveFiles returns the digests of the files of the live processes, one for each process.
func (k *Keeper) liveFiles(ctx context.Context) (digests []string, err error) {
	now, err := k.store.Patient.Time(ctx).Result()
	if err != nil {
		return nil, store.Unavailable(err)
	}
	members, err := k.store.Patient.ZRangeByScore(ctx, store.FilesKey, &redis.ZRangeBy{
		Min: strconv.FormatInt(now.Add(-fileFor).UnixMilli(), 10), Max: "+inf",
	}).Result()
	for _, member := range members {
		digest, _, _ := strings.Cut(member, " ")
		digests = append(digests, digest)
	}
	return digests, store.Unavailable(err)
}

// logTakeover logs how the file differs from the one in force, which live processes follow. Without
// an environment the file may be one of another deployment.
func (k *Keeper) logTakeover(found record, file *File, live int) {
	before, err := decodeFile(found)
	if err != nil {
		return // Set reports it
	}
	added, removed, changed := differences(before.Tenants, file.Tenants)
	var sections []string
	for name, differ := range map[string]bool{
		"defaults": !reflect.DeepEqual(before.Baseline.Defaults, file.Baseline.Defaults) ||
			!reflect.DeepEqual(before.Baseline.Routes, file.Baseline.Routes),
		"tiers": !reflect.DeepEqual(before.Baseline.Tiers, file.Baseline.Tiers) ||
			!reflect.DeepEqual(before.Baseline.PoolWeights, file.Baseline.PoolWeights),
		"pools": !reflect.DeepEqual(before.Baseline.Pools, file.Baseline.Pools),
	} {
		if differ {
			sections = append(sections, name)
		}
	}
	slices.Sort(sections)
	log, advice := k.log.Info, []any(nil)
	if k.Environment == "" {
		log = k.log.Warn
		advice = []any{"advice", "set store.environment in all files, so that a file of another deployment is refused"}
	}
	log("this process's configuration file replaces the one in force, of running processes", append([]any{
		"processes", live, "tenants_added", added, "tenants_removed", removed, "tenants_changed", changed,
		"sections_changed", strings.Join(sections, ","), "file", file.digest, "in_force", found.Digest}, advice...)...)
}

// differences counts the tenants that only one of the files names, or with other settings.
func differences(before, after map[string]shaper.Overrides) (added, removed, changed int) {
	for name, was := range before {
		is, kept := after[name]
		switch {
		case !kept:
			removed++
		case !reflect.DeepEqual(was, is):
			changed++
		}
	}
	return len(after) - len(before) + removed, removed, changed
}
