{{/* Fails with all errors at once. Types and unknown names are the work of values.schema.json. */}}
{{- define "kprobe.check" -}}
{{- $errors := concat (include "kprobe.errors.cluster" . | fromJsonArray) (include "kprobe.errors.config" . | fromJsonArray) -}}
{{- $errors = concat $errors (include "kprobe.errors.addresses" . | fromJsonArray) -}}
{{- $errors = concat $errors (include "kprobe.errors.pods" . | fromJsonArray) -}}
{{- $errors = concat $errors (include "kprobe.errors.sizing" . | fromJsonArray) -}}
{{- $errors = concat $errors (include "kprobe.errors.relay" . | fromJsonArray) -}}
{{- if $errors }}{{ fail (printf "\n\n%s\n" (join "\n" $errors)) }}{{ end -}}
{{- end }}

{{- define "kprobe.errors.sizing" -}}
{{- $errors := list -}}
{{- if and .Values.sizing.services (not (include "kprobe.resources" .)) -}}
{{- $errors = append $errors (printf "sizing: docs/sizing.md has no row for this size in mode %s; set sizing.services to 0, and resources" .Values.mode) -}}
{{- end -}}
{{- toJson $errors -}}
{{- end }}

{{/* Patterns of addresses. */}}
{{- define "kprobe.ipv4" -}}
{{- $byte := "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])" -}}
{{- printf "(%s\\.){3}%s" $byte $byte -}}
{{- end }}

{{- define "kprobe.ipv6" -}}
{{- $group := "[0-9a-fA-F]{1,4}" -}}
{{- printf "((%s:){7}%s|(%s(:%s){0,6})?::(%s(:%s){0,6})?)" $group $group $group $group $group $group -}}
{{- end }}

{{- define "kprobe.port" -}}
{{- print "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])" -}}
{{- end }}

{{/* A name does not end in a number: that would be an address. */}}
{{- define "kprobe.host" -}}
{{- printf "(([\\w-]+\\.)*[a-zA-Z_][\\w-]*\\.?|%s|\\[%s\\])" (include "kprobe.ipv4" .) (include "kprobe.ipv6" .) -}}
{{- end }}

{{- define "kprobe.errors.cluster" -}}
{{- $errors := list -}}
{{- $cidrs := include "kprobe.clusterCIDR" . -}}
{{- range $name, $value := omit .Values "global" -}}
{{- range regexFindAll "REPLACE_ME\\w*" (toJson $value) -1 | uniq -}}
{{- $errors = append $errors (printf "%s: %s is a placeholder; replace it with the real value" $name .) -}}
{{- end -}}
{{- end -}}
{{- $url := printf "^https?://%s(:%s)?/?$" (include "kprobe.host" .) (include "kprobe.port" .) -}}
{{- if not (or (contains "REPLACE_ME" .Values.apiServer) (regexMatch $url .Values.apiServer)) -}}
{{- $errors = append $errors (printf "apiServer: %q is not a URL; write it like https://192.0.2.1:6443" .Values.apiServer) -}}
{{- end -}}
{{- if and (not $cidrs) (eq (.Values.config.detectLocalMode | default "ClusterCIDR") "ClusterCIDR") -}}
{{- $errors = append $errors "clusterCIDR: empty; kprobe needs it to distinguish pods, unless config.detectLocalMode is another than ClusterCIDR" -}}
{{- end -}}
{{- $range := printf "^(%s/([12]?[0-9]|3[0-2])|%s/([1-9]?[0-9]|1[01][0-9]|12[0-8]))$" (include "kprobe.ipv4" .) (include "kprobe.ipv6" .) -}}
{{- range splitList "," $cidrs -}}
{{- if not (or (eq . "") (contains "REPLACE_ME" .) (regexMatch $range .)) -}}
{{- $errors = append $errors (printf "clusterCIDR: %q is not a range; write it like 10.244.0.0/16" .) -}}
{{- end -}}
{{- end -}}
{{- toJson $errors -}}
{{- end }}

{{/* Fields of the configuration that have a value of their own. An empty one says nothing: whole files of kube-proxy have them. */}}
{{- define "kprobe.errors.config" -}}
{{- $errors := list -}}
{{- $own := dict "mode" "mode" "clusterCIDR" "clusterCIDR" "metricsBindAddress" "metrics.bindAddress" -}}
{{- $own = merge $own (dict "healthzBindAddress" "healthz.bindAddress" "stateDir" "savedState" "nodeCondition" "nodeCondition") -}}
{{- range $field, $value := $own -}}
{{- if get $.Values.config $field -}}
{{- $errors = append $errors (printf "config.%s: set the value %s instead" $field $value) -}}
{{- end -}}
{{- end -}}
{{- if dig "clientConnection" "kubeconfig" "" .Values.config -}}
{{- $errors = append $errors "config.clientConnection.kubeconfig: leave it out; the chart writes a kubeconfig for the ServiceAccount" -}}
{{- end -}}
{{- if .Values.config.hostnameOverride -}}
{{- $errors = append $errors "config.hostnameOverride: leave it out; every pod gets the name of its node" -}}
{{- end -}}
{{- toJson $errors -}}
{{- end }}

{{- define "kprobe.errors.addresses" -}}
{{- $errors := list -}}
{{- $address := printf "^$|^(%s|\\[%s\\]):%s$" (include "kprobe.ipv4" .) (include "kprobe.ipv6" .) (include "kprobe.port" .) -}}
{{- range $name, $text := dict "healthz.bindAddress" .Values.healthz.bindAddress "metrics.bindAddress" .Values.metrics.bindAddress -}}
{{- if not (regexMatch $address $text) -}}
{{- $errors = append $errors (printf "%s: %q is not ADDRESS:PORT; write it like 0.0.0.0:10256 or [::]:10256" $name $text) -}}
{{- end -}}
{{- end -}}
{{- if eq (include "kprobe.healthzPort" .) (include "kprobe.metricsPort" .) -}}
{{- $errors = append $errors (printf "healthz.bindAddress: metrics.bindAddress has the same port, %s; use another" (include "kprobe.healthzPort" . | trim)) -}}
{{- end -}}
{{- $loopback := "^127\\.|^\\[::1\\]" -}}
{{- if regexMatch $loopback .Values.healthz.bindAddress -}}
{{- $errors = append $errors (printf "healthz.bindAddress: kubelet does not reach %s" .Values.healthz.bindAddress) -}}
{{- end -}}
{{- if and .Values.metrics.podMonitor.enabled (or (not .Values.metrics.bindAddress) (regexMatch $loopback .Values.metrics.bindAddress)) -}}
{{- $errors = append $errors "metrics.podMonitor: Prometheus does not reach 127.0.0.1 of the node; set metrics.bindAddress, such as 0.0.0.0:10249" -}}
{{- end -}}
{{- toJson $errors -}}
{{- end }}

{{/* What the chart sets itself, and names of the node: its folder and its condition. */}}
{{- define "kprobe.errors.pods" -}}
{{- $errors := list -}}
{{- $path := .Values.savedState.path -}}
{{- if not (regexMatch "^/var/lib(/\\w[\\w.-]*)+$" $path) -}}
{{- $errors = append $errors (printf "savedState.path: %q is not a folder below /var/lib/, such as /var/lib/kprobe-state" $path) -}}
{{- else if regexMatch "^/var/lib/(kprobe|kubelet|etcd)(/|$)" $path -}}
{{- $errors = append $errors (printf "savedState.path: %q belongs to the configuration, to kubelet or to etcd; use another, such as /var/lib/kprobe-state" $path) -}}
{{- end -}}
{{- if has .Values.nodeCondition.type (list "Ready" "MemoryPressure" "DiskPressure" "PIDPressure" "NetworkUnavailable") -}}
{{- $errors = append $errors (printf "nodeCondition.type: kubelet or a cloud controller sets %s; use another, such as ServiceProxyReady" .Values.nodeCondition.type) -}}
{{- end -}}
{{- if hasKey (.Values.podAnnotations | default dict) "checksum/config" -}}
{{- $errors = append $errors "podAnnotations.checksum/config: leave it out; the chart sets it" -}}
{{- end -}}
{{- range $name, $pair := dict "podLabels" (list .Values.podLabels (dict "k8s-app" "kprobe")) "nodeSelector" (list .Values.nodeSelector (include "kprobe.nodeSelector" . | fromYaml)) -}}
{{- $given := first $pair | default dict -}}
{{- range $key, $own := last $pair -}}
{{- if and (hasKey $given $key) (ne (get $given $key) $own) -}}
{{- $errors = append $errors (printf "%s.%s: leave it out; the chart sets it to %s" $name $key $own) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $errors -}}
{{- end }}

{{- define "kprobe.errors.relay" -}}
{{- $errors := list -}}
{{- if and .Values.relay.enabled (not .Values.relay.addresses) -}}
{{- $errors = append $errors "relay.addresses: empty; write the addresses of the nodes with relays, like tcp://192.0.2.5:12091" -}}
{{- end -}}
{{- $address := printf "^tcp://(%s|\\[%s\\]):%s(@[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$" (include "kprobe.ipv4" .) (include "kprobe.ipv6" .) (include "kprobe.port" .) -}}
{{- range .Values.relay.addresses -}}
{{- if not (or (contains "REPLACE_ME" .) (regexMatch $address .)) -}}
{{- $errors = append $errors (printf "relay.addresses: %q is not an address; write it like tcp://192.0.2.5:12091 or tcp://192.0.2.5:12091@ZONE" .) -}}
{{- end -}}
{{- end -}}
{{- toJson $errors -}}
{{- end }}
