import { describe, expect, it } from 'vitest'
import { requestPath, watchedResources } from '../../../../src/source/kube/api-client.ts'

function paths(serviceProxyName?: string): string[] {
  return watchedResources({ nodeName: 'n1', serviceProxyName }).map(resource =>
    decodeURIComponent(requestPath(resource, { watch: '1' })),
  )
}

describe('resources', () => {
  it('A34: are selected as kube-proxy does', () => {
    expect(paths()).toEqual([
      '/api/v1/services?labelSelector=!service.kubernetes.io/service-proxy-name&fieldSelector=spec.clusterIP!=None&watch=1',
      '/apis/discovery.k8s.io/v1/endpointslices?labelSelector=!service.kubernetes.io/headless&watch=1',
      '/api/v1/nodes?fieldSelector=metadata.name=n1&watch=1',
      '/apis/networking.k8s.io/v1/servicecidrs?watch=1',
    ])
  })

  it('A34: with a proxy name only its Services are asked for, headless ones and their slices among them', () => {
    expect(paths('mine')).toEqual([
      '/api/v1/services?labelSelector=service.kubernetes.io/service-proxy-name=mine&watch=1',
      '/apis/discovery.k8s.io/v1/endpointslices?watch=1',
      ...paths().slice(2),
    ])
  })

  it('have their parameters encoded, and none that are empty', () => {
    const [services, , , cidrs] = watchedResources({ nodeName: 'n1', serviceProxyName: undefined })
    expect(services === undefined ? '' : requestPath(services, { continue: 'a+b&c=' })).toContain(
      'fieldSelector=spec.clusterIP!%3DNone&continue=a%2Bb%26c%3D',
    )
    expect(cidrs === undefined ? '' : requestPath(cidrs, { continue: '' })).toBe(
      '/apis/networking.k8s.io/v1/servicecidrs',
    )
  })
})
