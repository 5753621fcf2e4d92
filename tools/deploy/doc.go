// Package deploy tests the files of the directory deploy, docker-compose.yml among them.
package deploy
