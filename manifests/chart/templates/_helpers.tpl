{{/*
Why each object is as it is stands in manifests/, in the file of the same name: comments are there alone.

Labels stay whatever the name is, since alerts and dashboard go by them; and so do the names of the Secrets and of the
Lease, which are in a namespace of their own.
*/}}
{{- define "interlock.labels" -}}
app.kubernetes.io/name: trainjob-interlock
{{- end }}

{{- define "interlock.kueue.labels" -}}
app.kubernetes.io/name: trainjob-interlock
app.kubernetes.io/component: kueue
{{- end }}

{{- define "interlock.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- with .Values.image.digest }}@{{ . }}{{ end -}}
{{- end }}

{{/* <service>.<namespace>.svc: what the API server calls, and verifies. */}}
{{- define "interlock.dnsName" -}}
{{- printf "%s.%s.svc" .Values.name .Values.namespace.name -}}
{{- end }}

{{/* A namespace that Helm keeps its record in was there before, and cannot be made. */}}
{{- define "interlock.makesNamespace" -}}
{{- if and .Values.namespace.create (ne .Values.namespace.name .Release.Namespace) }}true{{ end -}}
{{- end }}

{{/* The pods' security: restricted. */}}
{{- define "interlock.podSecurity" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "interlock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What of a pod is the same for both; the argument is the chart and its part. */}}
{{- define "interlock.placement" -}}
{{- $chart := index . 0 }}{{ $part := index . 1 -}}
{{- with $chart.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- with $part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* Another name with other content, so that the pods are replaced. */}}
{{- define "interlock.clientAuthority" -}}
{{- printf "trainjob-interlock-client-ca-%s" (.Values.guard.clientAuthority | sha256sum | trunc 10) -}}
{{- end }}

{{/*
A PrometheusRule of a file, under this release's names. What its alerts have people type is changed too, and how many
replicas there are; its expressions go by labels, which are the same under every name.
*/}}
{{- define "interlock.alerts" -}}
{{- $chart := index . 0 }}{{ $values := $chart.Values }}{{ $name := $values.name -}}
{{- $rule := $chart.Files.Get (index . 1) | fromYaml -}}
{{- $metadata := $rule.metadata -}}
{{- $_ := set $metadata "name" (replace "trainjob-interlock" $name $metadata.name) -}}
{{- $_ := set $metadata "namespace" $values.namespace.name -}}
{{- $_ := set $metadata "labels" (merge $metadata.labels $values.monitoring.labels) -}}
{{- range $group := $rule.spec.groups }}
{{- range $alert := $group.rules }}
{{- $_ := set $alert "expr" ($alert.expr | replace "== 1) < 3" (printf "== 1) < %v" $values.guard.replicas)) }}
{{- range $what, $said := $alert.annotations | default dict }}
{{- $said = $said | replace "-n trainjob-interlock" (printf "-n %s" $values.namespace.name) }}
{{- $said = $said | replace "onfiguration trainjob-interlock" (printf "onfiguration %s" $name) }}
{{- $said = $said | replace "onfiguration }} trainjob-interlock" (printf "onfiguration }} %s" $name) }}
{{- $said = $said | replace "dispatch.phpboyscout.uk/a=" (printf "%s=" $values.aKey) }}
{{- $said = $said | replace "of 3 guard replicas" (printf "of %v guard replicas" $values.guard.replicas) }}
{{- $_ := set $alert.annotations $what $said }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $rule }}
{{- end }}
