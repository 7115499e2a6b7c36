// Writes and syncs: hammer FILE REQUESTS.
package main

import (
	"os"
	"strconv"
)

func main() {
	file, err := os.Create(os.Args[1])
	if err != nil {
		panic(err)
	}
	requests, _ := strconv.Atoi(os.Args[2])
	for i := 0; i < requests; i++ {
		if _, err := file.WriteAt([]byte("a"), int64(i%4096)); err != nil {
			panic(err)
		}
		if err := file.Sync(); err != nil {
			panic(err)
		}
	}
}
