package main

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/internal/config"
)

// pageLink is a link in Markdown, as pages have it.
var pageLink = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)

// settingFlags returns the flags of serve: a pointer to a struct for kong, with a field for each
// setting. The values stay text; package config reads them, so flag and file mean the same.
func settingFlags() any {
	var fields []reflect.StructField
	for i, s := range config.Settings() {
		kind := reflect.TypeFor[*string]()
		if s.Kind == config.Switch {
			kind = reflect.TypeFor[*bool]()
		}
		given := "not set"
		if s.Default != "" {
			given = s.Default
		}
		help := fmt.Sprintf("%s [%s, %s, %s]", pageLink.ReplaceAllString(s.Help, "$1"), s.Key, s.Env(), given)
		tag := fmt.Sprintf("name:%q help:%s group:%q placeholder:%q setting:%q",
			s.Flag(), strconv.Quote(help), "settings", placeholder(s), s.Key)
		fields = append(fields, reflect.StructField{
			Name: "Setting" + strconv.Itoa(i), Type: kind, Tag: reflect.StructTag(tag),
		})
	}
	return reflect.New(reflect.StructOf(fields)).Interface()
}

func placeholder(s config.Setting) string {
	switch s.Kind {
	case config.Whole:
		return "N"
	case config.Duration:
		return "DURATION"
	case config.Rate:
		return "LIMIT/PERIOD"
	case config.Fraction:
		return "SHARE"
	case config.Switch:
		return ""
	}
	switch s.Key {
	case "api.listen", "admin.listen":
		return "ADDR"
	case "redis.url", "traces.endpoint":
		return "URL"
	case "redis.data_dir":
		return "DIR"
	default:
		return "TEXT"
	}
}

// settingValues returns the given flags of settingFlags by the key of the setting.
func settingValues(plugins kong.Plugins) map[string]string {
	values := map[string]string{}
	for _, plugin := range plugins {
		v := reflect.ValueOf(plugin).Elem()
		for i := range v.NumField() {
			if field := v.Field(i); !field.IsNil() {
				values[v.Type().Field(i).Tag.Get("setting")] = fmt.Sprint(field.Elem().Interface())
			}
		}
	}
	return values
}
