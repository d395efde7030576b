import type { ApiObject } from '../../../../src/source/kube/wire/tables.ts'

export function service(name: string): ApiObject {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'ns', name },
    spec: { clusterIP: '10.96.0.1', ports: [{ port: 80 }] },
  }
}
