#!/bin/sh
# The namespace that the workers use. Histories are archived by Salience; Temporal keeps a closed run for a week.
set -eu
temporal operator namespace describe --namespace default || temporal operator namespace create --namespace default --retention 7d
